"""What several tests share: sample files and stores, programs, and fakes of services and disks."""

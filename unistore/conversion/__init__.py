"""Running a conversion: tasks, journal, executors, seal."""

"""`lerobot-train`, which also reads roots that `to_store.py` made. Its options are the same."""

import unistore_lerobot
from lerobot.scripts.lerobot_train import main

unistore_lerobot.register()  # in workers that are spawned, too

if __name__ == "__main__":
    main()

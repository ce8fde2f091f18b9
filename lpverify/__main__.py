"""``python -m lpverify``."""

from lpverify.cli import main

if __name__ == "__main__":
    main()

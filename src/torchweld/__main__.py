"""`python -m torchweld`: the command line, for an interpreter whose scripts are not on the path."""

from torchweld.cli.main import app

if __name__ == "__main__":
    app(prog_name="torchweld")

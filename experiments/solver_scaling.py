"""Time and certified gap of the multi-path optimum against the number of nodes: data, then picture.

    python experiments/solver_scaling.py            run everything (about 15 minutes on two cores) and draw
    python experiments/solver_scaling.py --quick    only problems of up to 120 nodes
    python experiments/solver_scaling.py --draw     draw the stored data again

The figure ``solver_scaling`` of ``lpverify figures``, by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.figures.figure_data import Work
from experiments.figures.figures import make

OUT = Path(__file__).parent.parent / "paper_figs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only small problems")
    parser.add_argument("--draw", action="store_true", help="only draw the stored data")
    options = parser.parse_args()
    work = None if options.draw else Work("quick" if options.quick else "full", stage=print)
    for name, seconds in make(["solver_scaling"], OUT, work=work):
        print(f"{name}: {seconds:.1f} s")


if __name__ == "__main__":
    main()

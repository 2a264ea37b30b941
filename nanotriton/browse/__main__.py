"""Write one HTML page of runs: curves, verdicts, samples and settings. It opens without a network.

    python -m nanotriton.browse RUN [RUN ...] [--out page.html] [--rows 20000]

RUN is a run's folder, or a folder of runs. Runs that differ in nothing but their seed are drawn as one curve
with its spread. The page of one run is written into its folder, that of several beside the folder
of the first.
Exit status: 0 the page is written, 2 bad usage.
"""

import argparse
from pathlib import Path

from nanotriton import config
from nanotriton.browse.page import page
from nanotriton.browse.runs import RunError, find_runs


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = config.Parser(
        prog="python -m nanotriton.browse",
        description="Write one HTML page of runs: curves, verdicts, samples and settings.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder of runs"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the page (default: browse.html in the folder of a single run, or beside that of the first)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=20_000,
        help="rows of samples of each run that the page holds; of more, only every so many steps are kept, "
        "whole (default: 20000)",
    )
    options = parser.parse_args(argv)
    if options.rows < 1:
        parser.error(f"--rows {options.rows}: a number over 0 is expected")
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    try:
        runs = find_runs(options.runs)
        first = runs[0].folder
        out = options.out or (first if len(runs) == 1 else first.parent) / "browse.html"
        config.writable(str(out))
        text = page(runs, options.rows)
        out.write_text(text, encoding="utf-8")
    except (RunError, config.ConfigError) as error:
        config.die(error)
    print(
        f"{out} is written: {len(runs)} run{'s' * (len(runs) > 1)}, {len(text) / 1e6:.1f} MB; "
        "open it in a browser"
    )


if __name__ == "__main__":
    main()

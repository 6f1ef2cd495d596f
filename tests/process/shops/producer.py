"""A process that places orders: `python -m tests.process.shops.producer MODULE NAME`, then a line for each batch."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.process.shops.order import drawn


def main() -> None:
    module, name = sys.argv[1:]
    shop = import_module(module)
    number = 0
    for line in sys.stdin:
        count, sleepy = map(int, line.split())
        shop.place([drawn(name, number + index, is_sleepy=index < sleepy) for index in range(count)])
        number += count
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

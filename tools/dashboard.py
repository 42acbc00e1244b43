"""Writes the Grafana dashboard, deploy/grafana/glossa.json, from the rows in panels.py.

python -m tools.dashboard            write it
python -m tools.dashboard --check    fail if it is stale
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.panels import ROWS, Panel

FILE = Path(__file__).parent.parent / "deploy" / "grafana" / "glossa.json"
WIDTH, HEIGHT, PANELS_IN_A_ROW = 24, 7, 4
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def main(arguments: list[str]) -> int:
    text = json.dumps(dashboard(), indent=1) + "\n"
    if arguments != ["--check"]:
        FILE.write_text(text)
        return 0
    if FILE.is_file() and FILE.read_text() == text:
        return 0
    sys.stderr.write("deploy/grafana/glossa.json is stale: run 'make docs' and commit the result\n")
    return 1


def dashboard() -> dict[str, Any]:
    return {
        "uid": "glossa",
        "title": "Glossa",
        "tags": ["glossa"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": list(_laid_out()),
    }


def _laid_out() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            line, column = divmod(index, PANELS_IN_A_ROW)
            width = WIDTH // PANELS_IN_A_ROW
            place = {"x": column * width, "y": top + line * HEIGHT, "w": width, "h": HEIGHT}
            yield _panel(number, panel, place)
        top += HEIGHT * -(-len(panels) // PANELS_IN_A_ROW)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

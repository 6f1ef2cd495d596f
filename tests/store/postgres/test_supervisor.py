"""Several processes of one worker on a server."""

from contextlib import ExitStack
from pathlib import Path

from tests.process.support import Scene
from tests.process.test_supervisor import killed_process_is_recorded


def test_the_jobs_of_a_killed_process_run_again_at_once(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as cleaning:
        killed_process_is_recorded(Scene(postgres_url, tmp_path, cleaning), 2)

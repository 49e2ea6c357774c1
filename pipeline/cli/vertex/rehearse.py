"""Run the job compiled for Vertex AI on this machine."""

import json
from pathlib import Path

from pipeline.cli.command_line import FAILED, SUCCEEDED
from pipeline.cli.vertex.commands import Session
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.runs.results import read_results
from pipeline.runs.step import StepFailed
from pipeline.settings.target import only_run_in
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.rehearsal import task_runner


def rehearse(session: Session) -> int:
    """Compile for Vertex AI with local folders, run the job task by task, and show the outcome."""
    config, vertex, folder, screen = session.config, session.vertex, session.folder, session.screen
    if config.data.query_source or is_remote(config.data.path):
        raise UserError(
            f"the data is at {config.data.path}, and a rehearsal runs without Google Cloud; give a copy, or part of "
            "it, with --data"
        )
    with only_run_in(folder):
        screen.start(config, f"{session.run_id}, a rehearsal of Vertex AI")
        try:
            target = task_runner.target_for(folder, config.name, vertex)
            job = json.loads(compile(config, target, folder).read_text(encoding="utf-8"))
            module = Path(config.module)
            steps = task_runner.run(job, session.run_id, folder, module, screen.busy, screen.step_ends)
        except StepFailed as failure:
            screen.failure(failure.step, failure.seconds, failure.__cause__, config)
            page = task_runner.report_of(folder, session.run_id)
            if page:
                screen.note(f"report {page}")
            return FAILED
        except UserError:
            raise
        except Exception as error:
            screen.failure("Compiling", 0.0, error, config)
            return FAILED
        screen.results(read_results(steps), config)
        page = task_runner.report_of(folder, session.run_id)
        log = folder / "logs" / session.run_id / "Report.log"
        screen.note(f"report {page}" if page else f"no report; the log is {log}")
        missing = task_runner.not_rehearsed(vertex)
        screen.note("\n".join(["", "not rehearsed:", *(f"  {line}" for line in missing)]))
        return SUCCEEDED  # also if the model was not blessed: every task ran as it would on Vertex AI

"""Commands about jobs, their schedules, and models that are registered and deployed."""

import functools
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

from pipeline.cli.command_line import FAILED, SUCCEEDED
from pipeline.cli.vertex import estimates
from pipeline.cli.vertex.commands import Session
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.quality.verdict import NOT_BLESSED
from pipeline.runs import watched_jobs
from pipeline.settings.target import Target
from pipeline.vertex import UPLOADS
from pipeline.vertex.cloud import Cloud, LostContact, explaining
from pipeline.vertex.endpoints import batch, canary
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.registry import DEFAULT, Registry
from pipeline.vertex.pipelines import preflight, submit
from pipeline.vertex.pipelines import watch as watching

LOST_CONTACT = 4


def run(session: Session) -> int:
    """Check, compile, upload and submit the pipeline, and wait for its end."""
    code, session = _check(session)
    if code == FAILED:
        return FAILED
    _compile(session)
    cloud, note = session.connect(), session.screen.note
    submitted = submit.submit(session.folder, session.vertex, cloud, note)
    note(
        f"{'the same job runs already, nothing was submitted' if submitted.already else 'submitted'}\n"
        f"  job   {submitted.name}\n  page  {submit.console_url(submitted.name)}\n"
    )
    return SUCCEEDED if session.arguments.no_wait else _wait(submitted.name, cloud, session)


def check(session: Session) -> int:
    """List the requirements of a run, and each problem with the command that corrects it."""
    return _check(session)[0]


def _check(session: Session) -> tuple[int, Session]:
    """Check; return the exit code, and the session with its images by their digests."""
    vertex, screen = session.vertex, session.screen
    screen.start(session.config, f"{session.run_id}, on Vertex AI in {vertex.region}, project {vertex.project}")
    checked = preflight.check(session.config, vertex, session.connect)
    for finding in checked.findings:
        screen.finding(finding.subject, finding.state, finding.text, finding.remedy)
    screen.note("")
    within_budget = estimates.show(replace(session, vertex=checked.vertex))
    screen.note("")
    wrong = sum(finding.state == "wrong" for finding in checked.findings) + (not within_budget)
    if wrong:
        screen.note(f"{wrong} of these must be put right first. Nothing was submitted.")
    return FAILED if wrong else SUCCEEDED, replace(session, vertex=checked.vertex)


def compile(session: Session) -> int:
    """Write the job and its files to a folder, without Google Cloud."""
    job = _compile(session)
    uploads = json.loads((session.folder / UPLOADS).read_text(encoding="utf-8"))
    session.screen.note(
        f"wrote {job}\nand the {len(uploads)} files to upload before it runs are in {UPLOADS} next to it"
    )
    return SUCCEEDED


def schedule(session: Session) -> int:
    """Create the schedule of the pipeline, or change it to this job and these times."""
    config = session.config
    if not config.data.query_source and not is_remote(config.data.path):
        raise UserError(
            f"the data is on this machine ({config.data.path}), and every run of a schedule would train on the copy "
            "that is uploaded now; put the data into a bucket or BigQuery and name it with data.path or --data"
        )
    code, session = _check(session)
    if code == FAILED:
        return FAILED
    _compile(session)
    with explaining("scheduling"):
        cloud, note = session.connect(), session.screen.note
        submit.create_schedule(session.folder, session.vertex, config.name, session.arguments.cron, cloud, note)
    return SUCCEEDED


def schedules(session: Session) -> int:
    """List the schedules of the project in the region."""
    with explaining("listing the schedules"):
        shown = submit.list_schedules(session.connect())
    vertex = session.vertex
    session.screen.note("\n".join(map(submit.described, shown)) or f"no schedules in {vertex.project}, {vertex.region}")
    return SUCCEEDED


def _change_schedule(session: Session, change: submit.Change) -> int:
    name = session.arguments.schedule
    with explaining(f"changing the schedule {name}"):
        changed = submit.change_schedule(name, change, session.connect())
    session.screen.note(submit.described(changed) if changed else f"deleted the schedule {name}")
    return SUCCEEDED


pause = functools.partial(_change_schedule, change="pause")
resume = functools.partial(_change_schedule, change="resume")
unschedule = functools.partial(_change_schedule, change="delete")


def watch(session: Session) -> int:
    """Wait for a job that was submitted before."""
    cloud, job = session.connect(), session.arguments.job
    return _wait(job if job.startswith("projects/") else f"{cloud.parent}/pipelineJobs/{job}", cloud, session)


def _compile(session: Session) -> Path:
    # Not imported before the checks: TensorFlow and TFX take seconds.
    from pipeline.vertex.pipelines.compile import compile

    shutil.rmtree(session.folder / "upload", ignore_errors=True)
    target = Target.on_vertex(session.vertex, session.config.name, session.folder / "upload")
    target = replace(target, engine=session.arguments.engine)
    try:
        return compile(session.config, target, session.folder, estimates.compiled_rates(session))
    except UserError:
        raise
    except Exception as error:
        logging.getLogger("pipeline").exception("compiling failed")
        raise UserError(f"compiling failed: {type(error).__name__}: {error}; the whole of it is in the log") from error


def _wait(job: str, cloud: Cloud, session: Session) -> int:
    screen, arguments = session.screen, session.arguments
    try:
        ended = watching.watch(
            job, cloud, lambda line: screen.line(*line), screen.note, arguments.poll, arguments.patience
        )
    except LostContact as error:
        screen.note(f"\n{error}")
        return LOST_CONTACT
    if page := watching.page_of(ended):
        screen.note(f"\nreport {page}")
    else:
        from pipeline.vertex.pipelines.report_task import report_here  # TFX takes seconds

        try:
            report_here(ended, cloud, session.folder, screen.note)
        except Exception as error:  # a failed report does not change the exit code
            logging.getLogger("pipeline").exception("reporting failed")
            screen.note(f"no report: {type(error).__name__}: {error}; the whole of it is in the log")
    bill = watching.bill_of_job(ended)
    if bill:
        estimates.show_bill(bill, screen)
        watched_jobs.keep(session.output, watching.watched(job, ended, bill))
    if watching.state_of(ended) != "succeeded":
        screen.note(f"\n{watching.failure_of(job, ended)}")
        return FAILED
    pushed_to = watching.pushed_to(ended)
    if pushed_to is None:
        screen.note("\nnot pushed: the model was not blessed; what was pushed before stays")
        return NOT_BLESSED
    screen.note(f"\npushed to {pushed_to}")
    return SUCCEEDED


def rollback(session: Session) -> int:
    """Bring a version back to the endpoint; end a push that has not ended."""
    assert session.vertex.endpoint is not None  # a needed setting
    cloud, note, dry_run = session.connect(), session.screen.note, session.arguments.dry_run
    serving, registry = ServingEndpoint(cloud, session.vertex.endpoint), Registry(cloud, session.config.name)
    with explaining("the rollback"):
        plan = canary.plan(serving, registry, session.arguments.version)
        note(f"endpoint  {serving.name}\nnow       {plan.now}")
        note("\n".join(f"{'would' if dry_run else 'to do'}     {step}" for step in plan.steps))
        if dry_run:
            note("nothing was changed")
        else:
            canary.carry_out(serving, registry, plan, note)
    return SUCCEEDED


def batch_predict(session: Session) -> int:
    """Answer the rows of a table or of files with the version that has the alias "default"."""
    arguments, config, cloud = session.arguments, session.config, session.connect()
    with explaining("batch prediction"):
        registry = Registry(cloud, config.name)
        version = registry.with_alias(DEFAULT)
        if version is None:
            raise UserError(
                f"there is no model {registry.name} in the registry; push one with python vertex_runner.py --endpoint"
            )
        to = arguments.to or f"gs://{session.vertex.bucket}/{config.name}/predictions"
        batch.predict(
            version,
            arguments.source,
            to,
            config.label,
            session.vertex,
            cloud,
            session.screen.note,
            arguments.poll,
            config.data.images,
        )
    return SUCCEEDED


def monitor(session: Session) -> int:
    """Create the schedule that compares the endpoint's requests with the training data, or change it."""
    from pipeline.vertex.pipelines import monitoring  # and TensorFlow Data Validation, which the others do without

    vertex, folder, cron = session.vertex, session.folder, session.arguments.cron
    target = Target.on_vertex(vertex, session.config.name, folder / "upload")
    monitoring.compile(session.config, target, folder, session.arguments.retrain)
    with explaining("scheduling"):
        name = monitoring.name_of(session.config.name)
        submit.create_schedule(folder, vertex, name, cron, session.connect(), session.screen.note)
    return SUCCEEDED

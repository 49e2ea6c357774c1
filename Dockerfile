# The image of every task on Vertex AI and of the workers on Dataflow. make image builds it; docs/vertex.md says more.
# models/ is not in it: the user's code travels with every run, as a wheel.

ARG PYTHON=3.11
ARG BEAM=2.77.0

FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS beam

# Debian 13: two of TFX's wheels need its glibc (docs/decisions/0003).
FROM python:${PYTHON}-slim-trixie AS packages
ARG VARIANT=cpu
WORKDIR /build
COPY requirements.lock requirements-gpu.lock setup.py pyproject.toml ./
# uv itself from the lock too, by its hash, and outside of what is copied on.
RUN python -m venv /uv \
    && sed -n '/^uv==/,/^    # via/p' requirements.lock > uv.txt \
    && /uv/bin/pip install --no-cache-dir --require-hashes --requirement uv.txt
COPY pipeline pipeline
# Only what setup.py asks for itself, not its extras, at the versions and hashes of the lock. Byte code that is not
# checked against its source needs no times that survive the copy.
ENV PYC_INVALIDATION_MODE=UNCHECKED_HASH
RUN case "${VARIANT}" in \
        cpu) set -- . ;; \
        gpu) set -- . "tensorflow[and-cuda]" --constraint requirements-gpu.lock ;; \
        *) echo "VARIANT must be cpu or gpu, got ${VARIANT}" >&2; exit 1 ;; \
    esac \
    && /uv/bin/uv pip install --system --no-cache --compile-bytecode --constraint requirements.lock "$@"
# The tag says which library is inside; an image that lies is not built.
ARG FINGERPRINT
RUN test "$(python -m pipeline.packaging.fingerprints fingerprint)" = "${FINGERPRINT}"

FROM python:${PYTHON}-slim-trixie
ARG PYTHON=3.11
COPY --from=packages /usr/local/lib/python${PYTHON}/site-packages /usr/local/lib/python${PYTHON}/site-packages
COPY --from=beam /opt/apache/beam /opt/apache/beam
RUN useradd --create-home --uid 1000 pipeline
USER 1000
WORKDIR /home/pipeline
# What is imported was compiled above. Dataflow's start-up would otherwise look for the packages in an environment of
# its own.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ARG FINGERPRINT
ARG LOCK
ARG VARIANT=cpu
LABEL pipeline.library-fingerprint="${FINGERPRINT}" \
    pipeline.lock-sha256="${LOCK}" \
    pipeline.variant="${VARIANT}"
# Of the Dataflow workers; the tasks on Vertex AI name their own command.
ENTRYPOINT ["/opt/apache/beam/boot"]

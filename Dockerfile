# The image of every task on Vertex AI and of the workers on Dataflow. make image builds it; docs/vertex.md says more.
# models/ is not in it: the user's code travels with every run, as a wheel.

ARG PYTHON=3.11
ARG BEAM=2.77.0
# make image names them with their digests, from base-images.lock.
ARG PYTHON_IMAGE=python:${PYTHON}-slim-trixie
ARG BEAM_IMAGE=apache/beam_python${PYTHON}_sdk:${BEAM}

FROM ${BEAM_IMAGE} AS beam

# Debian 13: two of TFX's wheels need its glibc (docs/decisions/0003).
FROM ${PYTHON_IMAGE} AS packages
ARG VARIANT=cpu
WORKDIR /build
COPY requirements.lock requirements-image.lock requirements-gpu.lock ./
# uv itself from the lock too, by its hash, and outside of what is copied on.
RUN python -m venv /uv \
    && sed -n '/^uv==/,/^    # via/p' requirements.lock > uv.txt \
    && /uv/bin/pip install --no-cache-dir --require-hashes --requirement uv.txt
# Byte code that is not checked against its source needs no times that survive the copy.
ENV PYC_INVALIDATION_MODE=UNCHECKED_HASH
RUN case "${VARIANT}" in \
        cpu) set -- ;; \
        gpu) set -- --requirement requirements-gpu.lock ;; \
        *) echo "VARIANT must be cpu or gpu, got ${VARIANT}" >&2; exit 1 ;; \
    esac \
    && /uv/bin/uv pip install --python /usr/local/bin/python --no-cache --compile-bytecode --require-hashes --no-deps \
        --build-constraints requirements-image.lock --requirement requirements-image.lock "$@"
COPY setup.py pyproject.toml ./
COPY pipeline pipeline
ARG PYTHON=3.11
# The lock beside the library, whose fingerprint is over both: the report of a run names it.
RUN /uv/bin/uv pip install --python /usr/local/bin/python --no-cache --compile-bytecode --no-deps \
        --no-build-isolation . \
    && cp requirements-image.lock "/usr/local/lib/python${PYTHON}/site-packages/"
# The tag says which library is inside; an image that lies is not built.
WORKDIR /
ARG FINGERPRINT
RUN test "$(python -m pipeline.packaging.fingerprints fingerprint)" = "${FINGERPRINT}"

# With root as its user only for what cannot run without: Dataflow's workers write below /var/opt/google, and the trials
# of Vertex AI Vizier to /var/hypertune (docs/decisions/0017).
FROM ${PYTHON_IMAGE} AS root
ARG PYTHON=3.11
# A copy adds to a folder: the base's own pip would stay beside the one of the lock.
RUN rm -r "/usr/local/lib/python${PYTHON}/site-packages" \
    && useradd --create-home --uid 1000 pipeline
COPY --from=packages /usr/local/lib/python${PYTHON}/site-packages /usr/local/lib/python${PYTHON}/site-packages
COPY --from=beam /opt/apache/beam /opt/apache/beam
WORKDIR /home/pipeline
# What is imported was compiled above. Dataflow's start-up would otherwise look for the packages in an environment of
# its own. Vertex AI puts NVIDIA's driver into the last folders, where TensorFlow must find it. How memory is taken: see
# pipeline/cli/startup.py.
ENV PYTHONUNBUFFERED=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1 \
    PATH=/usr/local/nvidia/bin:${PATH} \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
ARG FINGERPRINT
ARG LOCK
ARG VARIANT=cpu
ARG PYTHON_IMAGE
ARG BEAM_IMAGE
LABEL pipeline.library-fingerprint="${FINGERPRINT}" \
    pipeline.lock-sha256="${LOCK}" \
    pipeline.variant="${VARIANT}" \
    pipeline.base="${PYTHON_IMAGE}" \
    pipeline.beam="${BEAM_IMAGE}"
# Of the Dataflow workers; the tasks on Vertex AI name their own command.
ENTRYPOINT ["/opt/apache/beam/boot"]

# All else: the tasks of the pipeline, the jobs of the Trainer and the Tuner, the endpoint.
FROM root AS tasks
USER 1000

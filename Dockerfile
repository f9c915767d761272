# The program `reput` with a Java runtime, run by a user without rights (10001).
#
#   docker build -t rocketmq-reput .
#
# BASE_IMAGE may be any Debian 12; package managers take their settings from it and from build
# arguments that they read themselves (PIP_INDEX_URL, http_proxy, …).
ARG BASE_IMAGE=debian:12.12-slim

# What the program needs, by hash, in a virtual environment. Changes with the lock file alone.
FROM ${BASE_IMAGE} AS packages
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
COPY requirements-run.lock /build/
# pyspark is published as source only: its build takes the setuptools of the lock, nothing unlocked.
RUN python3 -m venv /opt/reput \
 && grep -A2 '^setuptools==' /build/requirements-run.lock >/build/setuptools.lock \
 && /opt/reput/bin/pip install --require-hashes -r /build/setuptools.lock \
 && /opt/reput/bin/pip install --require-hashes --no-build-isolation --use-pep517 \
        -r /build/requirements-run.lock

FROM packages AS wheel
COPY pyproject.toml hatch_build.py README.md LICENSE /build/
COPY store /build/store
COPY checkpoints /build/checkpoints
COPY streaming /build/streaming
COPY reput /build/reput
COPY pyspark_reput /build/pyspark_reput
RUN /opt/reput/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel /build

FROM ${BASE_IMAGE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless python3 \
 && rm -rf /var/lib/apt/lists/*
# A named volume takes over the owner of the folder it is mounted on.
RUN groupadd --gid 10001 reput \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp reput \
 && install -d /store \
 && install -d -o reput -g reput /output
COPY --from=packages /opt/reput /opt/reput
COPY --from=wheel /wheel /wheel
# Compiled kernels are kept beside the sources. The demo shows that all of it runs. Its JVM ends after
# it, and deletes files of its own in /tmp until then.
RUN /opt/reput/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl \
 && /opt/reput/bin/python -m reput.compile_kernels \
 && /opt/reput/bin/reput demo --seconds 1 --directory /tmp/demo \
 && timeout 60 sh -c 'while ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q /java; do sleep 0.1; done' \
 && find /tmp -mindepth 1 -delete
ENV PATH=/opt/reput/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["reput"]
CMD ["--help"]

# Targets: services (API, reconciler, dashboard, migrations), cpu and gpu (workers). One lock file for all of them;
# which PyTorch is installed is the only difference.
#
#   docker build --target services .        docker build --target gpu .

FROM python:3.11.14-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --uid 10001 --create-home --home-dir /var/lib/keyhole keyhole
WORKDIR /opt/keyhole
COPY requirements.lock requirements-builtin.lock ./

FROM base AS dependencies-cpu
# PyTorch's index of CPU builds, a tenth of the size of those with CUDA (its "Get started" page names the address):
#   docker compose build --build-arg TORCH_CPU_INDEX=https://…
# Without it the default build for Linux is installed, which runs on CPUs too.
ARG TORCH_CPU_INDEX=
RUN version="$(sed -n 's/^torch==//p' requirements.lock)" \
    && pip install ${TORCH_CPU_INDEX:+--index-url "$TORCH_CPU_INDEX"} "torch==${version}" \
    && pip install -r requirements.lock \
    && pip install --no-deps -r requirements-builtin.lock

FROM base AS dependencies-gpu
# PyPI's build for Linux carries CUDA; the host needs the NVIDIA driver and container toolkit only
RUN pip install -r requirements.lock \
    && pip install --no-deps -r requirements-builtin.lock

FROM dependencies-cpu AS cpu
COPY pyproject.toml README.md ./
COPY services services
COPY workers workers
COPY db db
COPY dashboard dashboard
COPY presets presets
RUN pip install --no-deps --editable .
USER keyhole
ENV KEYHOLE_HOME=/var/lib/keyhole KEYHOLE_DEVICES=cpu
ENTRYPOINT ["keyhole"]
CMD ["serve", "worker"]

# services resolve and vet sources with the same libraries, and never import torch
FROM cpu AS services
ENV KEYHOLE_HOST=0.0.0.0
EXPOSE 8471 8472
CMD ["serve", "api"]

FROM dependencies-gpu AS gpu
COPY pyproject.toml README.md ./
COPY services services
COPY workers workers
COPY db db
COPY dashboard dashboard
COPY presets presets
RUN pip install --no-deps --editable .
USER keyhole
ENV KEYHOLE_HOME=/var/lib/keyhole KEYHOLE_DEVICES=auto NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["keyhole"]
CMD ["serve", "worker"]

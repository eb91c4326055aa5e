# The image of every role: slim, not root, content with a read-only file system (give it a tmpfs at /tmp).
# Your own kinds, templates and consumers: build FROM this image and copy them to /app, or mount them there.

FROM python:3.13-slim AS packages
COPY requirements-runtime.lock /
RUN python -m venv /opt/notif \
 && /opt/notif/bin/python -m pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      --require-hashes -r /requirements-runtime.lock

FROM python:3.13-slim
ENV PATH=/opt/notif/bin:$PATH PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin notif \
 && printf '#!/bin/sh\nexec python -m notif "$@"\n' > /usr/local/bin/notif \
 && chmod 755 /usr/local/bin/notif
COPY --from=packages /opt/notif /opt/notif
COPY notif /app/notif
COPY workers /app/workers
COPY config /app/config
RUN python -m compileall -q /app/notif /app/workers
WORKDIR /app
USER 10001:10001
CMD ["notif", "--help"]

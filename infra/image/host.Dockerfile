# The GPU host's side: linked with glibc, because it loads the driver's library
# (libnvidia-ml.so.1) at run time, which the container runtime brings in.
ARG BASE=gcr.io/distroless/base-debian12:latest
FROM ${BASE}
COPY opsplane-host /opsplane-host
# Which of the driver's files NVIDIA's container toolkit mounts.
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
# The reset and the holders' processes take root on the host.
USER 0:0
ENTRYPOINT ["/opsplane-host"]

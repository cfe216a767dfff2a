# What runs in the Job of component.upgrade: one static program, the CAs that it
# trusts, and a folder for Helm's files (a volume in the cluster).
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY opsplane-upgrade /usr/local/bin/opsplane-upgrade
# Jobs call it by its name alone.
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["opsplane-upgrade"]

# The agent: one static program, and the CAs that it trusts.
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY opsplane-agent /opsplane-agent
USER 65532:65532
ENTRYPOINT ["/opsplane-agent"]

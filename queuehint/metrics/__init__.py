"""Metrics of a scheduler, for Prometheus (`queuehint[prometheus]`) and OpenTelemetry (`queuehint[otel]`)."""

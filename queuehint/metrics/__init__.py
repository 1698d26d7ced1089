"""What a scheduler measures, for Prometheus (`queuehint[prometheus]`) and OpenTelemetry (`queuehint[otel]`)."""

{{- /*
Wrong combinations, each with the sentence that says what to do. The schema checks single values; this checks what only
shows when two are seen together, or what deserves a better sentence than a schema gives. All are reported at once.
*/}}
{{- define "fountain.check" -}}
{{- $v := .Values }}
{{- $s := $v.secrets }}
{{- $wrong := list }}
{{- if gt (int $v.replicaCount) 1 }}
{{- $wrong = append $wrong "replicaCount: more than one replica is not supported yet; leave it at 1." }}
{{- end }}
{{- if not $v.publicUrl }}
{{- $wrong = append $wrong "publicUrl: set the address under which this installation is reached, for example https://fountain.example.com." }}
{{- end }}
{{- if $s.existingSecret }}
{{- if or $s.inline.databaseUrl $s.inline.masterSecretsKey $s.inline.migrationDatabaseUrl $s.inline.extra }}
{{- $wrong = append $wrong "secrets: existingSecret and inline exclude each other; put the inline values into that Secret." }}
{{- end }}
{{- else }}
{{- if not $s.inline.databaseUrl }}
{{- $wrong = append $wrong "secrets: name a Secret in existingSecret, or give inline.databaseUrl (postgres://user:password@host:5432/database)." }}
{{- else if not (regexMatch "^postgres(ql)?://" $s.inline.databaseUrl) }}
{{- $wrong = append $wrong "secrets.inline.databaseUrl: it must begin with postgres:// or postgresql://; the chart keeps no volume for an SQLite file." }}
{{- end }}
{{- if not $s.inline.masterSecretsKey }}
{{- $wrong = append $wrong "secrets: name a Secret in existingSecret, or give inline.masterSecretsKey. Make a key with: head -c 32 /dev/urandom | basenc --base64url | tr -d '='" }}
{{- else if not (regexMatch "^[A-Za-z0-9_-]{43}$" $s.inline.masterSecretsKey) }}
{{- $wrong = append $wrong "secrets.inline.masterSecretsKey: it must be 32 bytes in url-safe base64 without padding, which is 43 characters." }}
{{- end }}
{{- if $s.keys.extra }}
{{- $wrong = append $wrong "secrets.keys.extra: it names keys of existingSecret, which is not set; use inline.extra." }}
{{- end }}
{{- if eq $v.migrations.mode "job" }}
{{- $wrong = append $wrong "migrations.mode=job: the hook runs before this release's Secret exists, so it needs secrets.existingSecret; or use mode boot or initContainer." }}
{{- end }}
{{- end }}
{{- if and (has $v.migrations.mode (list "boot" "none")) (or $s.keys.migrationDatabaseUrl $s.inline.migrationDatabaseUrl) }}
{{- $wrong = append $wrong (printf "migrationDatabaseUrl: migrations.mode=%s would not use it; set mode job or initContainer." $v.migrations.mode) }}
{{- end }}
{{- $tls := $v.database.tls }}
{{- if and $tls.ca.configMap $tls.ca.secret }}
{{- $wrong = append $wrong "database.tls.ca: name a ConfigMap or a Secret, not both." }}
{{- end }}
{{- if and (include "fountain.hasCa" .) (not $tls.verify) }}
{{- $wrong = append $wrong "database.tls.ca: without database.tls.verify=true nothing would check against it." }}
{{- end }}
{{- if and $tls.verify (not $tls.enabled) }}
{{- $wrong = append $wrong "database.tls.verify: there is no certificate to check while database.tls.enabled is false." }}
{{- end }}
{{- if le (int $v.shutdown.gracePeriodSeconds) (int $v.shutdown.preStopSeconds) }}
{{- $wrong = append $wrong "shutdown.gracePeriodSeconds: it counts preStopSeconds too and must be larger, or the server is killed without a chance to stop." }}
{{- end }}
{{- if and $v.metrics.enabled (eq (int $v.metrics.port) (int $v.server.port)) }}
{{- $wrong = append $wrong "metrics.port: it must differ from server.port; metrics are never on the public listener." }}
{{- end }}
{{- if and $v.service.nodePort (eq $v.service.type "ClusterIP") }}
{{- $wrong = append $wrong "service.nodePort: a ClusterIP Service has none; set service.type to NodePort or LoadBalancer." }}
{{- end }}
{{- /* Names that another value of the chart owns. Given twice, one of the two would silently lose. */}}
{{- $owners := dict "PUBLIC_URL" "publicUrl" "PORT" "server.port" "POD_NAME" "the pod itself" "METRICS_PORT" "metrics" "MIGRATE_ON_BOOT" "migrations.mode" "POOL_SIZE" "database.poolSize" "DATABASE_SSL" "database.tls.enabled" "DATABASE_SSL_VERIFY" "database.tls.verify" "DATABASE_SSL_CA_FILE" "database.tls.ca" "DATABASE_URL" "secrets" "MASTER_SECRETS_KEY" "secrets" }}
{{- $extra := merge (dict) $s.keys.extra $s.inline.extra }}
{{- $listed := dict }}
{{- range $v.extraEnv }}{{ $_ := set $listed .name true }}{{ end }}
{{- range $name, $owner := $owners }}
{{- if or (hasKey $v.settings $name) (hasKey $listed $name) (hasKey $extra $name) }}
{{- $wrong = append $wrong (printf "%s: it comes from %s; take it out of settings, extraEnv and extra secrets." $name $owner) }}
{{- end }}
{{- end }}
{{- range $name, $_ := $extra }}
{{- if hasKey $v.settings $name }}
{{- $wrong = append $wrong (printf "%s: it is both in settings and in secrets." $name) }}
{{- end }}
{{- end }}
{{- /* A ConfigMap is readable by far more people than a Secret. */}}
{{- range $name, $_ := $v.settings }}
{{- if or (regexMatch "(_TOKEN|_API_KEY|_SECRET|_SECRET_KEY|_PASSWORD|_DSN)$" $name) (has $name (list "SECRET_KEY_BASE" "REGISTRATION_ACCESS_CODE" "OTEL_EXPORTER_OTLP_HEADERS")) }}
{{- $wrong = append $wrong (printf "settings.%s: this is a credential; put it into secrets (keys.extra or inline.extra)." $name) }}
{{- end }}
{{- end }}
{{- /* The server refuses to boot with a provider that it has no credential for; say so before the pod does. */}}
{{- $provider := default "" (get $v.settings "SANDBOX_PROVIDER") }}
{{- $credential := get (dict "sprites" "SPRITES_TOKEN" "e2b" "E2B_API_KEY" "daytona" "DAYTONA_API_KEY") $provider }}
{{- if and $credential (not $v.extraEnvFrom) (not (hasKey $extra $credential)) (not (hasKey $listed $credential)) }}
{{- $wrong = append $wrong (printf "settings.SANDBOX_PROVIDER=%s: it needs %s in secrets (keys.extra or inline.extra)." $provider $credential) }}
{{- end }}
{{- if and (eq $provider "runner") (eq (toString (get $v.settings "SANDBOX_RUNNERS_ENABLED")) "false") }}
{{- $wrong = append $wrong "settings.SANDBOX_PROVIDER=runner: SANDBOX_RUNNERS_ENABLED must not be false." }}
{{- end }}
{{- if $wrong }}
{{- fail (printf "\n\nThe values of the fountain chart do not fit together:\n- %s\n" (join "\n- " $wrong)) }}
{{- end }}
{{- end }}

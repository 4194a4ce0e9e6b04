{{- /* Names. All are cut to what a label may hold. */}}
{{- define "fountain.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "fountain.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The full name with a suffix that must survive the cut: (list $ "metrics"). */}}
{{- define "fountain.suffixed" -}}
{{- $suffix := index . 1 }}
{{- $room := sub 62 (len $suffix) | int }}
{{- printf "%s-%s" (include "fountain.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix }}
{{- end }}

{{- define "fountain.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- /* The selector is immutable in a Deployment, so nothing that may change belongs into it. */}}
{{- define "fountain.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fountain.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fountain.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fountain.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fountain.image" -}}
{{- $i := .Values.image }}
{{- with $i.registry }}{{ . }}/{{ end }}{{ $i.repository }}
{{- if $i.digest }}@{{ $i.digest }}{{ else }}:{{ default .Chart.AppVersion $i.tag }}{{ end }}
{{- end }}

{{- define "fountain.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fountain.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "fountain.secretName" -}}
{{- default (include "fountain.fullname" .) .Values.secrets.existingSecret }}
{{- end }}

{{- /* A value of `settings` as the text that the program reads. YAML numbers arrive as floats: 1000000 must not become 1e+06. */}}
{{- define "fountain.settingText" -}}
{{- if kindIs "float64" . }}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else }}{{ toString . }}{{ end }}
{{- end }}

{{- /* Everything in the ConfigMap. */}}
{{- define "fountain.config" -}}
{{- $v := .Values -}}
PUBLIC_URL: {{ $v.publicUrl | quote }}
PORT: {{ int $v.server.port | quote }}
METRICS_PORT: {{ ternary (toString (int $v.metrics.port)) "" $v.metrics.enabled | quote }}
MIGRATE_ON_BOOT: {{ eq $v.migrations.mode "boot" | quote }}
POOL_SIZE: {{ int $v.database.poolSize | quote }}
{{ include "fountain.databaseTls" . }}
{{- range $name, $value := $v.settings }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ include "fountain.settingText" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fountain.databaseTls" -}}
DATABASE_SSL: {{ .Values.database.tls.enabled | quote }}
DATABASE_SSL_VERIFY: {{ .Values.database.tls.verify | quote }}
{{- if include "fountain.hasCa" . }}
DATABASE_SSL_CA_FILE: {{ printf "/etc/fountain/database-ca/%s" .Values.database.tls.ca.key | quote }}
{{- end }}
{{- end }}

{{- define "fountain.hasCa" -}}
{{- if or .Values.database.tls.ca.configMap .Values.database.tls.ca.secret }}yes{{ end }}
{{- end }}

{{- define "fountain.caVolume" -}}
{{- if include "fountain.hasCa" . -}}
- name: database-ca
  {{- with .Values.database.tls.ca }}
  {{- if .configMap }}
  configMap:
    name: {{ .configMap }}
  {{- else }}
  secret:
    secretName: {{ .secret }}
  {{- end }}
    items:
      - key: {{ .key }}
        path: {{ .key }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "fountain.caMount" -}}
{{- if include "fountain.hasCa" . -}}
- name: database-ca
  mountPath: /etc/fountain/database-ca
  readOnly: true
{{- end }}
{{- end }}

{{- /* One variable out of the Secret: (list $ NAME key). */}}
{{- define "fountain.secretEnv" -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "fountain.secretName" (index . 0) }}
      key: {{ index . 2 }}
{{- end }}

{{- /* Under which key of the Secret a credential stands; an inline Secret has our own names. */}}
{{- define "fountain.keyOfDatabaseUrl" -}}
{{- ternary .Values.secrets.keys.databaseUrl "DATABASE_URL" (ne .Values.secrets.existingSecret "") }}
{{- end }}

{{- define "fountain.keyOfMigrationUrl" -}}
{{- $s := .Values.secrets }}
{{- if $s.existingSecret }}{{ default $s.keys.databaseUrl $s.keys.migrationDatabaseUrl }}
{{- else }}{{ ternary "MIGRATION_DATABASE_URL" "DATABASE_URL" (ne $s.inline.migrationDatabaseUrl "") }}
{{- end }}
{{- end }}

{{- define "fountain.secretEnvs" -}}
{{- $s := .Values.secrets -}}
{{ include "fountain.secretEnv" (list . "DATABASE_URL" (include "fountain.keyOfDatabaseUrl" .)) }}
{{ include "fountain.secretEnv" (list . "MASTER_SECRETS_KEY" (ternary $s.keys.masterSecretsKey "MASTER_SECRETS_KEY" (ne $s.existingSecret ""))) }}
{{- if $s.existingSecret }}
{{- range $name, $key := $s.keys.extra }}
{{ include "fountain.secretEnv" (list $ $name $key) }}
{{- end }}
{{- else }}
{{- range $name, $value := $s.inline.extra }}
{{ include "fountain.secretEnv" (list $ $name $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The container that only migrates: of the Job and of the init container. It gets the database and nothing else. */}}
{{- define "fountain.migrateContainer" -}}
- name: migrate
  image: {{ include "fountain.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate]
  env:
    {{- include "fountain.secretEnv" (list . "DATABASE_URL" (include "fountain.keyOfMigrationUrl" .)) | nindent 4 }}
    {{- range $name, $value := include "fountain.databaseTls" . | fromYaml }}
    - name: {{ $name }}
      value: {{ $value | quote }}
    {{- end }}
    {{- range $name := list "RUST_LOG" "FOUNTAIN_LOG" }}
    {{- with get $.Values.settings $name }}
    - name: {{ $name }}
      value: {{ . | quote }}
    {{- end }}
    {{- end }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml .Values.migrations.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- with include "fountain.caMount" . }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "fountain.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit }}
{{- end }}

{{- /* The `sleep` action came with Kubernetes 1.29 and is on by default from 1.30. Before that, coreutils' own program: no shell either way. */}}
{{- define "fountain.preStop" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}
sleep:
  seconds: {{ int .Values.shutdown.preStopSeconds }}
{{- else -}}
exec:
  command: [/bin/sleep, {{ int .Values.shutdown.preStopSeconds | quote }}]
{{- end }}
{{- end }}

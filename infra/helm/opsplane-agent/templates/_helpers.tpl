{{- define "opsplane-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 bytes at most: Jobs and their pods append to it. */}}
{{- define "opsplane-agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "opsplane-agent.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* ClusterRoles have no namespace: their names say whose they are. */}}
{{- define "opsplane-agent.clusterName" -}}
{{- printf "opsplane:%s:%s" .Release.Namespace (include "opsplane-agent.fullname" .) -}}
{{- end -}}

{{/* Names of admission policies are DNS subdomains. */}}
{{- define "opsplane-agent.policyName" -}}
{{- printf "opsplane.%s.%s" .Release.Namespace (include "opsplane-agent.fullname" .) -}}
{{- end -}}

{{- define "opsplane-agent.selector" -}}
app.kubernetes.io/name: {{ include "opsplane-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "opsplane-agent.hostSelector" -}}
app.kubernetes.io/name: {{ include "opsplane-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: host
{{- end -}}

{{- define "opsplane-agent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "opsplane-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: opsplane
{{- end -}}

{{- define "opsplane-agent.serviceAccount" -}}
{{- default (include "opsplane-agent.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "opsplane-agent.hostAccount" -}}
{{- printf "%s-host" (include "opsplane-agent.fullname" .) -}}
{{- end -}}

{{- define "opsplane-agent.jobAccount" -}}
{{- printf "%s-reset" (include "opsplane-agent.fullname" .) -}}
{{- end -}}

{{- define "opsplane-agent.upgradeAccount" -}}
{{- default (printf "%s-upgrade" (include "opsplane-agent.fullname" .)) .Values.componentUpgrade.serviceAccountName -}}
{{- end -}}

{{- define "opsplane-agent.tokenSecret" -}}
{{- default (printf "%s-token" (include "opsplane-agent.fullname" .)) .Values.token.existingSecret -}}
{{- end -}}

{{/* An image's name: (list . image). */}}
{{- define "opsplane-agent.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What values.schema.json cannot say, said once. */}}
{{- define "opsplane-agent.check" -}}
{{- $_ := required "plane.url is needed: the URL of the plane, as the agents reach it" .Values.plane.url -}}
{{- if and (not .Values.token.existingSecret) (not .Values.token.value) -}}
{{- fail "token.existingSecret or token.value is needed: the agent's token, as `opsplane cluster create` prints it" -}}
{{- end -}}
{{- if and .Values.token.existingSecret .Values.token.value -}}
{{- fail "token.existingSecret and token.value are both given: which is it?" -}}
{{- end -}}
{{- if and (hasPrefix "http://" (lower .Values.plane.url)) (not .Values.plane.insecure) -}}
{{- fail "plane.url is http://, so the agent's token would be sent in the clear: use https://, or accept it with plane.insecure=true" -}}
{{- end -}}
{{- if and .Values.componentUpgrade.enabled (not .Values.componentUpgrade.components) -}}
{{- fail "componentUpgrade.components is empty: name what may be upgraded" -}}
{{- end -}}
{{- range .Values.tolerations -}}
{{- if and (ne (default "" .effect) "NoExecute") (or (eq (default "" .key) "node.kubernetes.io/unschedulable") (and (not .key) (eq (default "Equal" .operator) "Exists"))) -}}
{{- fail "tolerations: the agent must not tolerate node.kubernetes.io/unschedulable, or a drained node gets it back" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The agent's configuration file. */}}
{{- define "opsplane-agent.config" -}}
{{- $c := dict "inventory" (dict "excludeNamespaces" .Values.inventory.excludeNamespaces "nodeLabels" .Values.inventory.nodeLabels "components" .Values.inventory.components "componentNamespaces" .Values.inventory.componentNamespaces) -}}
{{- $pull := list -}}
{{- range .Values.imagePullSecrets }}{{ $pull = append $pull .name }}{{ end -}}
{{- with .Values.deviceReset -}}
{{- if .enabled -}}
{{- $host := $.Values.host -}}
{{- $_ := set $c "deviceReset" (dict "image" (include "opsplane-agent.image" (list $ $host.image)) "imagePullPolicy" $host.image.pullPolicy "imagePullSecrets" $pull "serviceAccount" (include "opsplane-agent.jobAccount" $) "runtimeClass" $host.runtimeClassName "priorityClass" .priorityClassName "driverRoot" $host.driverRoot "releasePersistence" .releasePersistence "resetTimeout" (printf "%ds" (int .resetTimeoutSeconds)) "lookTimeout" (printf "%ds" (int .lookTimeoutSeconds))) -}}
{{- end -}}
{{- end -}}
{{- with .Values.componentUpgrade -}}
{{- if .enabled -}}
{{- $_ := set $c "componentUpgrade" (dict "image" (include "opsplane-agent.image" (list $ .image)) "imagePullPolicy" .image.pullPolicy "imagePullSecrets" $pull "serviceAccount" (include "opsplane-agent.upgradeAccount" $) "registrySecret" .registrySecret "priorityClass" .priorityClassName "timeout" (printf "%ds" (int .timeoutSeconds)) "components" .components) -}}
{{- end -}}
{{- end -}}
{{- toYaml $c -}}
{{- end -}}

{{/* The configuration cannot be changed under an agent: another one has another
name, and the pods that use it are new. */}}
{{- define "opsplane-agent.configName" -}}
{{- printf "%s-%s" (include "opsplane-agent.fullname" .) (include "opsplane-agent.config" . | sha256sum | trunc 10) -}}
{{- end -}}

{{/*
CEL that tells that a map is what it was but for some keys: the map, the map as it
was, and what holds of a key k that may change, come and go.
*/}}
{{- define "opsplane-agent.same" -}}
{{- $now := index . 0 }}{{ $was := index . 1 }}{{ $free := index . 2 -}}
{{ $now }}.all(k, {{ $free }} || k in {{ $was }} && {{ $now }}[k] == {{ $was }}[k]) &&
{{ $was }}.all(k, {{ $free }} || k in {{ $now }})
{{- end }}

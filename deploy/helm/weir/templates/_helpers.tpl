{{- /* The name of everything: the release's, with the chart's name unless that is in it. */ -}}
{{- define "weir.name" -}}
{{- if .Values.nameOverride -}}
{{- .Values.nameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/part-of: weir
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* A duration of the configuration in whole seconds, rounded up. */ -}}
{{- define "weir.seconds" -}}
{{- $text := . | toString -}}
{{- $amount := regexFind "^[0-9]+" $text | int64 -}}
{{- $unit := regexReplaceAll "^[0-9]+" $text "" -}}
{{- if eq $unit "ms" -}}{{- div (add $amount 999) 1000 -}}
{{- else if eq $unit "s" -}}{{- $amount -}}
{{- else if eq $unit "m" -}}{{- mul $amount 60 -}}
{{- else if eq $unit "h" -}}{{- mul $amount 3600 -}}
{{- else if eq $unit "d" -}}{{- mul $amount 86400 -}}
{{- else -}}{{- fail (printf "config: %q is not a duration such as 30s" $text) -}}
{{- end -}}
{{- end -}}

{{- /* The port of a listener, which must not be on loopback. */ -}}
{{- define "weir.port" -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]+$" (.address | toString)) -}}
{{- fail (printf "config: %s must be 0.0.0.0:PORT or [::]:PORT, not %q: a pod is reached at its own address" .key (.address | toString)) -}}
{{- end -}}
{{- regexFind "[0-9]+$" .address -}}
{{- end -}}

{{- /* The ports of Redis that weir may connect to, as JSON: `port`, as in earlier charts, or else `ports`. */ -}}
{{- define "weir.redisPorts" -}}
{{- if .port -}}{{- list (int .port) | toJson -}}{{- else -}}{{- .ports | default list | toJson -}}{{- end -}}
{{- end -}}

{{- /* The facts of the configuration that the chart needs, as JSON: the ports, and how long a pod takes to end. */ -}}
{{- define "weir.facts" -}}
{{- $config := fromYaml .Values.config -}}
{{- if hasKey $config "Error" -}}{{- fail (printf "config: %s" $config.Error) -}}{{- end -}}
{{- $server := $config.server | default dict -}}
{{- $admin := $config.admin | default dict -}}
{{- $redis := dict -}}
{{- if kindIs "map" $config.store -}}{{- $redis = $config.store.redis -}}{{- end -}}
{{- if and $redis (ne ($redis.fleet_size | default 1 | toString) (.Values.replicas | toString)) -}}
{{- fail (printf "config: store.redis.fleet_size is %v and replicas is %v: make them equal" ($redis.fleet_size | default 1) .Values.replicas) -}}
{{- end -}}
{{- if and (not $redis) (gt (int .Values.replicas) 1) -}}
{{- fail "config: without store.redis each replica has limits of its own: set replicas to 1" -}}
{{- end -}}
{{- $policy := .Values.networkPolicy -}}
{{- if and $redis.sentinel $policy.enabled (not $policy.extraEgress) -}}
{{- if lt (include "weir.redisPorts" ($policy.redis | default dict) | fromJsonArray | len) 2 -}}
{{- fail "config: store.redis.sentinel needs two ports in networkPolicy.redis.ports: that of the sentinels and that of the servers, [26379, 6379] for instance" -}}
{{- end -}}
{{- end -}}
{{- $delay := include "weir.seconds" ($server.drain_delay | default "0s") | int64 -}}
{{- if lt $delay 1 -}}
{{- fail "config: set server.drain_delay, 5s for instance: until then all nodes know that an ending pod gets no new connections" -}}
{{- end -}}
{{- $timeout := include "weir.seconds" ($server.drain_timeout | default "30s") | int64 -}}
{{- dict
    "http" (include "weir.port" (dict "key" "listen" "address" ($config.listen | default "")) | int)
    "admin" (include "weir.port" (dict "key" "admin.listen" "address" ($admin.listen | default "")) | int)
    "grace" (add $delay $timeout 10)
    | toJson -}}
{{- end -}}

{{- define "heliograph.labels" -}}
app.kubernetes.io/name: heliograph
app.kubernetes.io/instance: {{ .root.Release.Name }}
heliograph/region: {{ .root.Values.region.name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* What the schema of the values cannot say. */}}
{{- define "heliograph.checked" -}}
{{- $own := .Values.brokers }}
{{- $count := int $own.replicas }}
{{- if and $own.advertised (ne (len $own.advertised) $count) }}
{{- fail (printf "brokers.advertised has %d addresses for %d brokers: clients must be told one for each" (len $own.advertised) $count) }}
{{- end }}
{{- if and $own.linkAddresses (ne (len $own.linkAddresses) $count) }}
{{- fail (printf "brokers.linkAddresses has %d addresses for %d brokers: other regions must be told one for each" (len $own.linkAddresses) $count) }}
{{- end }}
{{- $ports := dict "brokers" (dict "port" 6650 "tls_port" 6651 "admin_port" 8080 "admin_tls_port" 8443 "link_port" 6660 "inside_port" 6670) "bookies" (dict "port" 3181 "http_port" 8000) }}
{{- range $kind, $known := $ports }}
{{- range $name, $port := $known }}
{{- $given := get (index $.Values $kind "settings" | default dict) $name | toString }}
{{- $none := and (eq $kind "brokers") (has $name (list "port" "tls_port" "admin_tls_port")) | ternary "-1" "" }}
{{- if not (has $given (list "" "<nil>" $none (toString $port))) }}
{{- fail (printf "%s.settings.%s is %s, and the chart's services, probes, and policies go to %d: leave it out" $kind $name $given $port) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "heliograph.checked-of-all" . }}
{{- $security := .Values.security }}
{{- $asked := and $security.authentication (not $security.anonymous_role) }}
{{- $limited := and $security.authorization (not (has $security.anonymous_role ($security.super_users | default list))) }}
{{- if not (or $asked $limited (eq (toString $security.allow_insecure) "true")) }}
{{- fail "security: whoever reaches a broker may do everything: set security.authentication (docs/operating/deploying.md, \"Who may do what\"), or security.allow_insecure to true where nobody else can reach it" }}
{{- end }}
{{- if lt (mul (int .Values.bookies.replicas) (max 1 (len .Values.zones))) 2 }}
{{- fail "there is one bookie: each entry is kept by two of them" }}
{{- end }}
{{- end }}

{{/* The same of a region and of a witness. */}}
{{- define "heliograph.checked-of-all" -}}
{{- range compact (list .Values.region.name .Values.witness) }}
{{- if not (hasKey $.Values.configPeers .) }}
{{- fail (printf "configPeers does not name region %s itself: it holds all regions that the instance began with, and the witness" .) }}
{{- end }}
{{- end }}
{{- if and (has .Values.image.tag (list "latest" "main" "master" "edge" "nightly" "stable")) (not .Values.image.digest) (not .Values.image.allowMovingTag) }}
{{- fail (printf "image.tag %s means another image tomorrow, so that pods of one region would run different ones: name a version or image.digest, or set image.allowMovingTag" .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Not empty: this release is a witness, which has the role config alone. */}}
{{- define "heliograph.witness" -}}
{{- if eq (.Values.witness | default "") .Values.region.name }}true{{ end }}
{{- end }}

{{- define "heliograph.image" -}}
{{- if .Values.image.digest }}
{{- .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The canary's port: the settings' own; else 6652, where brokers have a port without TLS; 0: none. */}}
{{- define "heliograph.health" -}}
{{- $own := .Values.brokers.settings }}
{{- $canary := $own.canary | default dict }}
{{- if hasKey $canary "port" }}{{ $canary.port | default 0 | int }}{{ else if and (hasKey $own "port") (eq ($own.port | int) -1) }}0{{ else }}6652{{ end }}
{{- end }}

{{- define "heliograph.health-service" -}}
{{- with include "heliograph.health" . | int -}}
- {name: health, port: {{ . }}}
{{- end }}
{{- end }}

{{- define "heliograph.inside" -}}
{{ .Release.Namespace }}.svc.cluster.local
{{- end }}

{{/* Bookies: one set for each zone, or one. A list of {name, zone}. */}}
{{- define "heliograph.bookies" -}}
{{- $sets := list }}
{{- range .Values.zones }}
{{- $sets = append $sets (dict "name" (printf "%s-bookie-%s" $.Values.region.name .) "zone" .) }}
{{- else }}
{{- $sets = append $sets (dict "name" (printf "%s-bookie" .Values.region.name) "zone" "") }}
{{- end }}
{{- toJson $sets }}
{{- end }}

{{- define "heliograph.pod" -}}
serviceAccountName: {{ .root.Values.region.name }}-heliograph
automountServiceAccountToken: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
terminationGracePeriodSeconds: 90
affinity:
  podAntiAffinity:
    {{- $labels := dict "matchLabels" (dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .component) }}
    {{- $by := list "topology.kubernetes.io/zone" }}
    {{- if eq .root.Values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {{ toJson $labels }}
    {{- else }}
    {{- $by = prepend $by "kubernetes.io/hostname" }}
    {{- end }}
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- range $by }}
      - weight: 100
        podAffinityTerm:
          topologyKey: {{ . }}
          labelSelector: {{ toJson $labels }}
      {{- end }}
  {{- with .zone }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [{{ . | quote }}]}]
  {{- end }}
{{- end }}

{{- define "heliograph.container" -}}
name: {{ .component }}
image: {{ include "heliograph.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [python, -m, region_node.process, --settings, /srv/heliograph/settings/$(POD_NAME).json]
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: HELIOGRAPH_NODE_ID, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: HELIOGRAPH_BIND, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "heliograph.mounts" -}}
- {name: settings, mountPath: /srv/heliograph/settings, readOnly: true}
- {name: tls, mountPath: /srv/heliograph/tls, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- range .Values.secretMounts }}
- {name: secret-{{ . }}, mountPath: /srv/heliograph/secrets/{{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "heliograph.volumes" -}}
- {name: settings, configMap: {name: {{ .settings }}}}
- {name: tls, secret: {secretName: {{ .root.Values.tlsSecret }}, defaultMode: 288}}
- {name: tmp, emptyDir: {}}
{{- range .root.Values.secretMounts }}
- {name: secret-{{ . }}, secret: {secretName: {{ . }}, defaultMode: 288}}
{{- end }}
{{- end }}

{{- define "heliograph.claim" -}}
- metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .class }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end }}

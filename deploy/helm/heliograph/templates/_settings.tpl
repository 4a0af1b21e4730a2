{{/* What each process is told: name of the pod -> its settings. A list of pods is a ConfigMap, and what rolls them. */}}

{{/* What all processes are told; roles: those of this one. */}}
{{- define "heliograph.common" -}}
{{- $region := .root.Values.region.name }}
{{- $inside := include "heliograph.inside" .root }}
{{- $tls := dict "ca" "/srv/heliograph/tls/ca.pem" "internal" true }}
{{- range .roles }}
{{- $_ := set $tls (printf "%s_cert" .) (printf "/srv/heliograph/tls/%s.%s.pem" . $region) }}
{{- $_ := set $tls (printf "%s_key" .) (printf "/srv/heliograph/tls/%s.%s.key" . $region) }}
{{- end }}
{{- if has "broker" .roles }}
{{- $_ := set $tls "server_cert" $tls.broker_cert }}
{{- $_ := set $tls "server_key" $tls.broker_key }}
{{- end }}
{{- $meta := list }}
{{- range $i := until (eq (include "heliograph.witness" .root) "true" | ternary 0 (int .root.Values.meta.replicas)) }}
{{- $meta = append $meta (printf "%s-meta-%d.%s:7001" $region $i $inside) }}
{{- end }}
{{- $security := .root.Values.security }}
{{- toJson (dict "format" 1 "region" $region "meta" $meta "config" (list (printf "%s-config-0.%s:7002" $region $inside)) "tls" $tls "security" $security) }}
{{- end }}

{{/* kind: meta or config. */}}
{{- define "heliograph.settings-of-metadata" -}}
{{- $region := .root.Values.region.name }}
{{- $inside := include "heliograph.inside" .root }}
{{- $kind := .kind }}
{{- $files := dict }}
{{- $count := eq $kind "meta" | ternary (int .root.Values.meta.replicas) 1 }}
{{- $peers := dict }}
{{- range $i := until $count }}
{{- $_ := set $peers (printf "%s-meta-%d" $region $i) (printf "%s-meta-%d.%s:7001" $region $i $inside) }}
{{- end }}
{{- range $i := until $count }}
{{- $name := printf "%s-%s-%d" $region $kind $i }}
{{- $settings := include "heliograph.common" (dict "root" $.root "roles" (list $kind)) | fromJson }}
{{- $_ := set $settings "roles" (list $kind) }}
{{- $_ := set $settings "node_id" $name }}
{{- $_ := set $settings "data_dir" "/srv/heliograph/data/node" }}
{{- if eq $kind "meta" }}
{{- $_ := set $settings "meta_node" (dict "node_id" $name "port" 7001 "peers" $peers) }}
{{- else }}
{{- $_ := set $settings "config_node" (dict "node_id" $region "port" 7002 "raft_port" 7003 "peers" $.root.Values.configPeers) }}
{{- if include "heliograph.witness" $.root }}{{ $_ := set $settings.config_node "witness" true }}{{ end }}
{{- end }}
{{- $_ := set $files $name $settings }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* set: one of `heliograph.bookies`. */}}
{{- define "heliograph.settings-of-bookies" -}}
{{- $region := .root.Values.region.name }}
{{- $own := .root.Values.bookies }}
{{- $set := .set }}
{{- $files := dict }}
{{- range $i := until (int $own.replicas) }}
{{- $name := printf "%s-%d" $set.name $i }}
{{- $settings := include "heliograph.common" (dict "root" $.root "roles" (list "bookie")) | fromJson }}
{{- $_ := set $settings "roles" (list "bookie") }}
{{- $_ := set $settings "node_id" $name }}
{{- $_ := set $settings "data_dir" "/srv/heliograph/ledgers-0/node" }}
{{- $journals := list }}
{{- range $j := until (int $own.journals.count) }}{{ $journals = append $journals (printf "/srv/heliograph/journal-%d/journal" $j) }}{{ end }}
{{- $ledgers := list }}
{{- range $j := until (int $own.ledgers.count) }}{{ $ledgers = append $ledgers (printf "/srv/heliograph/ledgers-%d/ledgers" $j) }}{{ end }}
{{- $host := printf "%s.%s-bookie.%s" $name $region (include "heliograph.inside" $.root) }}
{{- $bookie := dict "port" 3181 "http_port" 8000 "bookie_id" (get $own.ids $name | default $name) "advertised_host" $host "rack" $set.zone "journal_dirs" $journals "ledger_dirs" $ledgers }}
{{- $_ := set $settings "bookie" (mergeOverwrite $bookie (deepCopy $own.settings)) }}
{{- $_ := set $files $name $settings }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* Clients go to a service of each broker's own; brokers ask each other at their pods, which have names before they are ready. */}}
{{- define "heliograph.settings-of-brokers" -}}
{{- $region := .root.Values.region.name }}
{{- $own := .root.Values.brokers }}
{{- $files := dict }}
{{- range $i := until (int $own.replicas) }}
{{- $name := printf "%s-broker-%d" $region $i }}
{{- $client := printf "%s.%s" $name (include "heliograph.inside" $.root) }}{{ if $own.advertised }}{{ $client = index $own.advertised $i }}{{ end }}
{{- $link := $client }}{{ if $own.linkAddresses }}{{ $link = index $own.linkAddresses $i }}{{ end }}
{{- $listeners := dict }}
{{- range $other, $_ := $.root.Values.configPeers }}
{{- if not (has $other (list $region $.root.Values.witness)) }}{{ $_ := set $listeners (printf "link-%s" $other) (printf "pulsar+ssl://%s:6660" $link) }}{{ end }}
{{- end }}
{{- $settings := include "heliograph.common" (dict "root" $.root "roles" (list "broker" "replicator")) | fromJson }}
{{- $_ := set $settings "roles" (list "broker") }}
{{- $_ := set $settings "node_id" $name }}
{{- $pod := printf "%s.%s-broker.%s" $name $region (include "heliograph.inside" $.root) }}
{{- $broker := dict "port" 6650 "tls_port" 6651 "admin_port" 8080 "admin_tls_port" 8443 "link_port" 6660 "inside_port" 6670 "inside_host" $pod "advertised_host" $client "listeners" $listeners }}
{{- $_ := set $broker "canary" (dict "port" (include "heliograph.health" $.root | int) "by_itself" true) }}
{{- $_ := set $settings "broker" (mergeOverwrite $broker (deepCopy $own.settings)) }}
{{- $_ := set $files $name $settings }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* files: what one of the above makes. */}}
{{- define "heliograph.files" -}}
{{- range $name, $settings := fromJson .files }}
  {{ $name }}.json: |
    {{- toPrettyJson $settings | nindent 4 }}
{{- end }}
{{- end }}

{{/* Pods start again when what they are told has changed, and only then. What is a pod's own, its name and the id of a bookie that lost a volume, does not count: more of
them, or another id, which that pod takes by itself, leave the others alone. */}}
{{- define "heliograph.annotations" -}}
{{- $told := list }}
{{- range $name, $settings := fromJson .files }}
{{- if hasKey $settings "bookie" }}{{ $_ := set $settings.bookie "bookie_id" "" }}{{ end }}
{{- $told = append $told (toJson $settings | replace $name "POD") }}
{{- end }}
{{- toJson (merge (dict "heliograph/settings" ($told | uniq | sortAlpha | toJson | sha256sum | trunc 16)) .root.Values.podAnnotations) }}
{{- end }}

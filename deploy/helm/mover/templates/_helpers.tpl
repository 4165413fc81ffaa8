{{- /* The image of the controller, and of Jobs whose Repository names none. */}}
{{- define "mover.image" -}}
{{- with $.Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}
{{- /* More images that a Repository may name, as the rest of a list of CEL. */}}
{{- define "mover.jobImages" -}}
{{- range $.Values.jobImages }}, '{{ . }}'{{ end -}}
{{- end -}}

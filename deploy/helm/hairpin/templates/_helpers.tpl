{{- define "hairpin.name" -}}
{{- printf "%s-hairpin" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "hairpin.selector" -}}
app.kubernetes.io/name: hairpin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hairpin.labels" -}}
{{ include "hairpin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "hairpin.secret" -}}
{{- default (include "hairpin.name" .) .Values.existingSecret }}
{{- end }}

{{- define "hairpin.checkMode" -}}
{{- if not (has .Values.mode (list "DaemonSet" "StatefulSet")) }}
{{- fail "mode must be DaemonSet or StatefulSet" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (ne .Values.mode "StatefulSet") }}
{{- fail "autoscaling.enabled requires mode StatefulSet: a DaemonSet has one pod per node" }}
{{- end }}
{{- if eq .Values.mode "StatefulSet" }}
{{- $most := int .Values.statefulset.replicas }}
{{- if .Values.autoscaling.enabled }}{{- $most = int .Values.autoscaling.maxReplicas }}{{- end }}
{{- if lt (int .Values.statefulset.services) $most }}
{{- fail (printf "statefulset.services must be at least %d: each pod needs a Service of its own" $most) }}
{{- end }}
{{- if lt (int .Values.statefulset.relayPorts) (int .Values.statefulset.workers) }}
{{- fail "statefulset.relayPorts must be at least statefulset.workers: each worker needs a port" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pod, for both modes. */}}
{{- define "hairpin.pod" -}}
metadata:
  labels:
    {{- include "hairpin.labels" . | nindent 4 }}
  annotations:
    {{- if not .Values.existingSecret }}
    checksum/config: {{ .Values.config | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  automountServiceAccountToken: false
  {{- if eq .Values.mode "DaemonSet" }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  # The preStop hook waits at most drainSeconds. SIGTERM then waits server.drain (20 s) and closes the remaining allocations.
  terminationGracePeriodSeconds: {{ add .Values.drainSeconds 30 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile:
      # The default seccomp profile forbids bpf(2).
      type: {{ if eq .Values.offload "kernel" }}Unconfined{{ else }}RuntimeDefault{{ end }}
  containers:
    - name: hairpin
      image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["serve", "--config", "/etc/hairpin/config/hairpin.toml"]
      env:
        - name: HAIRPIN_SERVER__CONTROL_SOCKET
          value: /run/hairpin/control/control.sock
        - name: HAIRPIN_SERVER__DRAIN
          value: 20s
        - name: HAIRPIN_ADMIN__LISTEN
          value: "0.0.0.0:{{ .Values.adminPort }}"
        - name: HAIRPIN_ADMIN__ALLOW_REMOTE
          value: "true"
        - name: HAIRPIN_LISTEN__UDP
          value: "0.0.0.0:{{ .Values.port }}"
        - name: HAIRPIN_LISTEN__TCP
          value: "0.0.0.0:{{ .Values.port }}"
        {{- if .Values.tlsSecret }}
        - name: HAIRPIN_TLS__CERTIFICATES
          value: /etc/hairpin/tls/tls.crt:/etc/hairpin/tls/tls.key
        - name: HAIRPIN_LISTEN__TLS
          value: "0.0.0.0:{{ .Values.tlsPort }}"
        - name: HAIRPIN_LISTEN__DTLS
          value: "0.0.0.0:{{ .Values.tlsPort }}"
        {{- end }}
        {{- if eq .Values.offload "user" }}
        - name: HAIRPIN_OFFLOAD__MODE
          value: "off"
        {{- end }}
        {{- if eq .Values.mode "StatefulSet" }}
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: HAIRPIN_RELAY__EXTERNAL_IP
          value: "$(POD_NAME).{{ .Values.statefulset.domain }}"
        - name: HAIRPIN_RELAY__SHARED_PORTS
          value: "true"
        - name: HAIRPIN_RELAY__PORTS
          value: "{{ .Values.statefulset.firstRelayPort }}-{{ sub (add .Values.statefulset.firstRelayPort .Values.statefulset.relayPorts) 1 }}"
        - name: HAIRPIN_SERVER__WORKERS
          value: {{ .Values.statefulset.workers | quote }}
        {{- else }}
        - name: HAIRPIN_RELAY__PORTS
          value: {{ .Values.daemonset.relayPorts | quote }}
        {{- end }}
      ports:
        - name: turn-udp
          containerPort: {{ .Values.port }}
          protocol: UDP
        - name: turn-tcp
          containerPort: {{ .Values.port }}
          protocol: TCP
        {{- if .Values.tlsSecret }}
        - name: turns-udp
          containerPort: {{ .Values.tlsPort }}
          protocol: UDP
        - name: turns-tcp
          containerPort: {{ .Values.tlsPort }}
          protocol: TCP
        {{- end }}
        - name: admin
          containerPort: {{ .Values.adminPort }}
          protocol: TCP
      startupProbe:
        httpGet:
          path: /healthz
          port: admin
        periodSeconds: 2
        failureThreshold: 30
      livenessProbe:
        httpGet:
          path: /healthz
          port: admin
        periodSeconds: 10
        failureThreshold: 3
      readinessProbe:
        httpGet:
          path: /readyz
          port: admin
        periodSeconds: 5
        failureThreshold: 2
      lifecycle:
        preStop:
          exec:
            command: ["/usr/bin/hairpin", "drain", "--wait", "--timeout", "{{ .Values.drainSeconds }}s"]
      securityContext:
        readOnlyRootFilesystem: true
        {{- if eq .Values.offload "kernel" }}
        # Required for the file capabilities of the program: no_new_privs disables them.
        allowPrivilegeEscalation: true
        capabilities:
          drop: ["ALL"]
          add: ["BPF", "NET_ADMIN", "PERFMON", "NET_BIND_SERVICE"]
        {{- else }}
        allowPrivilegeEscalation: false
        capabilities:
          drop: ["ALL"]
        {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: /etc/hairpin/config
          readOnly: true
        - name: run
          mountPath: /run/hairpin
        {{- if .Values.tlsSecret }}
        - name: tls
          mountPath: /etc/hairpin/tls
          readOnly: true
        {{- end }}
  volumes:
    - name: config
      secret:
        secretName: {{ include "hairpin.secret" . }}
        defaultMode: 0440
    - name: run
      emptyDir:
        medium: Memory
        sizeLimit: 1Mi
    {{- if .Values.tlsSecret }}
    - name: tls
      secret:
        secretName: {{ .Values.tlsSecret }}
        defaultMode: 0440
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

"""The tables of the chart tests: values -> path -> what must stand there, and values -> what Helm must say.

A row starts from ci/minimal-values.yaml (release `r`, so the full name is `r-fountain`); its values are laid over that.
"""

from helm import ABSENT

POD = "Deployment/r-fountain:spec.template.spec"
SERVER = POD + ".containers[name=fountain]"
MIGRATE = POD + ".initContainers[name=migrate]"
CONFIG = "ConfigMap/r-fountain:data"
OUTSIDE = {"existingSecret": "outside", "inline": {"databaseUrl": "", "masterSecretsKey": ""}}
JOB = {"secrets": OUTSIDE, "migrations": {"mode": "job"}}
JOB_POD = "Job/r-fountain-migrate:spec.template.spec"
DIGEST = "sha256:" + "ab" * 32

# (sentence, values, {path: expected})
RENDERED = [
    ("the server is started with an address that other pods reach", {}, {
        SERVER + ".args": ["serve", "--listen", "0.0.0.0:4000"],
        CONFIG + ".PORT": "4000",
        SERVER + ".ports[name=http].containerPort": 4000,
    }),
    ("another port reaches the flag, the variable and the container alike", {"server": {"port": 8080, "listenAddress": "[::]"}}, {
        SERVER + ".args": ["serve", "--listen", "[::]:8080"],
        CONFIG + ".PORT": "8080",
        SERVER + ".ports[name=http].containerPort": 8080,
        "Service/r-fountain:spec.ports[0].targetPort": "http",
    }),
    ("one replica, replaced without a gap", {}, {
        "Deployment/r-fountain:spec.replicas": 1,
        "Deployment/r-fountain:spec.strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    }),
    ("Recreate has no rolling settings", {"strategy": {"type": "Recreate"}}, {
        "Deployment/r-fountain:spec.strategy": {"type": "Recreate"},
    }),
    ("probes ask liveness and readiness separately", {}, {
        SERVER + ".startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 4, "failureThreshold": 30},
        SERVER + ".readinessProbe": {"httpGet": {"path": "/health/ready", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 4, "failureThreshold": 6},
        SERVER + ".livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 30, "timeoutSeconds": 4, "failureThreshold": 3},
    }),
    ("a single probe number can be changed", {"probes": {"startup": {"failureThreshold": 60}}}, {
        SERVER + ".startupProbe.failureThreshold": 60,
        SERVER + ".startupProbe.periodSeconds": 5,
    }),
    ("the server has two minutes to stop, after a pause without a shell", {}, {
        POD + ".terminationGracePeriodSeconds": 120,
        SERVER + ".lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }),
    ("no pause, no hook", {"shutdown": {"preStopSeconds": 0}}, {SERVER + ".lifecycle": ABSENT}),
    ("resources are those of the deployment contract", {}, {
        SERVER + ".resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "1Gi"}},
    }),
    ("only /tmp can be written, and it is bounded", {}, {
        SERVER + ".volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        POD + ".volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}],
    }),
    ("no token of the cluster, no variables of other Services", {}, {
        POD + ".automountServiceAccountToken": False,
        "ServiceAccount/r-fountain:automountServiceAccountToken": False,
        POD + ".enableServiceLinks": False,
        POD + ".serviceAccountName": "r-fountain",
    }),
    ("a foreign service account is used as named", {"serviceAccount": {"create": False, "name": "theirs"}}, {
        POD + ".serviceAccountName": "theirs",
        "ServiceAccount/r-fountain:": ABSENT,
        "ServiceAccount/theirs:": ABSENT,
    }),
    ("without a name the namespace's default account", {"serviceAccount": {"create": False}}, {POD + ".serviceAccountName": "default"}),
    ("rul_17 metrics have a Service of their own", {}, {
        CONFIG + ".METRICS_PORT": "9568",
        SERVER + ".ports[name=metrics].containerPort": 9568,
        "Service/r-fountain-metrics:spec.ports": [{"name": "metrics", "port": 9568, "targetPort": "metrics", "protocol": "TCP"}],
        "Service/r-fountain:spec.ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
    }),
    ("rul_17 metrics off means an empty port and no Service", {"metrics": {"enabled": False}}, {
        CONFIG + ".METRICS_PORT": "",
        SERVER + ".ports[name=metrics]": ABSENT,
        "Service/r-fountain-metrics:": ABSENT,
    }),
    ("the metrics Service alone can be left out", {"metrics": {"service": {"enabled": False}}}, {
        CONFIG + ".METRICS_PORT": "9568",
        "Service/r-fountain-metrics:": ABSENT,
    }),
    ("rul_32 the database connection is encrypted by default", {}, {
        CONFIG + ".DATABASE_SSL": "true",
        CONFIG + ".DATABASE_SSL_VERIFY": "false",
        CONFIG + ".DATABASE_SSL_CA_FILE": ABSENT,
        CONFIG + ".POOL_SIZE": "10",
    }),
    ("rul_32 an authority is mounted and named", {"database": {"tls": {"verify": True, "ca": {"configMap": "ca", "key": "a.pem"}}}}, {
        CONFIG + ".DATABASE_SSL_VERIFY": "true",
        CONFIG + ".DATABASE_SSL_CA_FILE": "/etc/fountain/database-ca/a.pem",
        POD + ".volumes[name=database-ca].configMap": {"name": "ca", "items": [{"key": "a.pem", "path": "a.pem"}]},
        SERVER + ".volumeMounts[name=database-ca].readOnly": True,
    }),
    ("rul_32 the authority can stand in a Secret", {"database": {"tls": {"verify": True, "ca": {"secret": "ca"}}}}, {
        POD + ".volumes[name=database-ca].secret.secretName": "ca",
    }),
    ("inline credentials go into a Secret that outlives the release", {"secrets": {"inline": {"extra": {"SPRITES_TOKEN": "t"}}}}, {
        "Secret/r-fountain:type": "Opaque",
        "Secret/r-fountain:data.SPRITES_TOKEN": "dA==",
        'Secret/r-fountain:metadata.annotations["helm.sh/resource-policy"]': "keep",
        SERVER + ".env[name=SPRITES_TOKEN].valueFrom.secretKeyRef": {"name": "r-fountain", "key": "SPRITES_TOKEN"},
        SERVER + ".env[name=DATABASE_URL].valueFrom.secretKeyRef": {"name": "r-fountain", "key": "DATABASE_URL"},
        SERVER + ".env[name=MASTER_SECRETS_KEY].valueFrom.secretKeyRef": {"name": "r-fountain", "key": "MASTER_SECRETS_KEY"},
    }),
    ("a Secret from outside is read under its own key names", {"secrets": OUTSIDE | {"keys": {"databaseUrl": "url", "masterSecretsKey": "master", "extra": {"E2B_API_KEY": "e2b"}}}}, {
        "Secret/r-fountain:": ABSENT,
        SERVER + ".env[name=DATABASE_URL].valueFrom.secretKeyRef": {"name": "outside", "key": "url"},
        SERVER + ".env[name=MASTER_SECRETS_KEY].valueFrom.secretKeyRef": {"name": "outside", "key": "master"},
        SERVER + ".env[name=E2B_API_KEY].valueFrom.secretKeyRef": {"name": "outside", "key": "e2b"},
        'Deployment/r-fountain:spec.template.metadata.annotations["checksum/secret"]': ABSENT,
    }),
    ("settings have three states", {"settings": {"TEAM_APP_URL": "", "CONVERSATIONS_APP_URL": None, "PRODUCT_NAME": "Well"}}, {
        CONFIG + ".TEAM_APP_URL": "",
        CONFIG + ".CONVERSATIONS_APP_URL": ABSENT,
        CONFIG + ".PRODUCT_NAME": "Well",
    }),
    ("numbers and booleans become the text that the program reads", {"settings": {"SANDBOX_FLEET_CEILING": 1000000, "SANDBOX_IDLE_TIMEOUT_MINUTES": 0, "SANDBOX_RUNNERS_ENABLED": False, "RATIO": 0.5}}, {
        CONFIG + ".SANDBOX_FLEET_CEILING": "1000000",
        CONFIG + ".SANDBOX_IDLE_TIMEOUT_MINUTES": "0",
        CONFIG + ".SANDBOX_RUNNERS_ENABLED": "false",
        CONFIG + ".RATIO": "0.5",
    }),
    ("the server migrates by default", {}, {CONFIG + ".MIGRATE_ON_BOOT": "true", POD + ".initContainers": ABSENT, "Job/r-fountain-migrate:": ABSENT}),
    ("mode none only serves", {"migrations": {"mode": "none"}}, {CONFIG + ".MIGRATE_ON_BOOT": "false", POD + ".initContainers": ABSENT, "Job/r-fountain-migrate:": ABSENT}),
    ("the init container migrates with the database's credentials alone", {"migrations": {"mode": "initContainer"}, "settings": {"FOUNTAIN_LOG": "debug"}}, {
        CONFIG + ".MIGRATE_ON_BOOT": "false",
        MIGRATE + ".args": ["migrate"],
        MIGRATE + ".env[name=DATABASE_URL].valueFrom.secretKeyRef.key": "DATABASE_URL",
        MIGRATE + ".env[name=DATABASE_SSL].value": "true",
        MIGRATE + ".env[name=FOUNTAIN_LOG].value": "debug",
        MIGRATE + ".env[name=MASTER_SECRETS_KEY]": ABSENT,
    }),
    ("the init container can pass a pooler by", {"migrations": {"mode": "initContainer"}, "secrets": {"inline": {"migrationDatabaseUrl": "postgres://direct/f"}}}, {
        MIGRATE + ".env[name=DATABASE_URL].valueFrom.secretKeyRef.key": "MIGRATION_DATABASE_URL",
        SERVER + ".env[name=DATABASE_URL].valueFrom.secretKeyRef.key": "DATABASE_URL",
    }),
    ("the Job runs before install and upgrade and leaves its failures to be read", JOB, {
        CONFIG + ".MIGRATE_ON_BOOT": "false",
        'Job/r-fountain-migrate:metadata.annotations["helm.sh/hook"]': "pre-install,pre-upgrade",
        'Job/r-fountain-migrate:metadata.annotations["helm.sh/hook-delete-policy"]': "before-hook-creation,hook-succeeded",
        "Job/r-fountain-migrate:spec.backoffLimit": 3,
        "Job/r-fountain-migrate:spec.activeDeadlineSeconds": 600,
        JOB_POD + ".restartPolicy": "Never",
        JOB_POD + ".containers[name=migrate].args": ["migrate"],
        JOB_POD + ".containers[name=migrate].env[name=DATABASE_URL].valueFrom.secretKeyRef": {"name": "outside", "key": "DATABASE_URL"},
    }),
    ("the Job needs nothing of the release, which does not exist yet", JOB, {
        JOB_POD + ".serviceAccountName": ABSENT,
        JOB_POD + ".containers[name=migrate].envFrom": ABSENT,
    }),
    ("the Job can pass a pooler by", {"secrets": OUTSIDE | {"keys": {"migrationDatabaseUrl": "direct"}}, "migrations": {"mode": "job"}}, {
        JOB_POD + ".containers[name=migrate].env[name=DATABASE_URL].valueFrom.secretKeyRef.key": "direct",
        SERVER + ".env[name=DATABASE_URL].valueFrom.secretKeyRef.key": "DATABASE_URL",
    }),
    ("the image is the release's own unless told otherwise", {}, {SERVER + ".image": "fountain:0.1.0"}),
    ("a tag replaces the version", {"image": {"tag": "v9", "registry": "images.example.com"}}, {SERVER + ".image": "images.example.com/fountain:v9"}),
    ("a digest wins over a tag", {"image": {"tag": "v9", "digest": DIGEST}}, {SERVER + ".image": "fountain@" + DIGEST}),
    ("pull secrets reach the pod", {"image": {"pullSecrets": [{"name": "login"}]}}, {POD + ".imagePullSecrets": [{"name": "login"}]}),
    ("the name override keeps the release in the name", {"nameOverride": "well"}, {"Deployment/r-well:spec.selector.matchLabels": {"app.kubernetes.io/name": "well", "app.kubernetes.io/instance": "r"}}),
    ("the full name override is the whole name", {"fullnameOverride": "well"}, {"Deployment/well:metadata.name": "well", "Service/well-metrics:metadata.name": "well-metrics"}),
    ("the namespace override reaches every object", {"namespaceOverride": "elsewhere"}, {
        "Deployment/r-fountain:metadata.namespace": "elsewhere",
        "Secret/r-fountain:metadata.namespace": "elsewhere",
        "Service/r-fountain-metrics:metadata.namespace": "elsewhere",
    }),
    ("labels of the user never enter the selector", {"commonLabels": {"team": "a"}, "podLabels": {"tier": "b"}}, {
        "Deployment/r-fountain:spec.selector.matchLabels": {"app.kubernetes.io/name": "fountain", "app.kubernetes.io/instance": "r"},
        "Deployment/r-fountain:spec.template.metadata.labels.team": "a",
        "Deployment/r-fountain:spec.template.metadata.labels.tier": "b",
    }),
    ("a spread constraint gets the release's selector", {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}, {
        POD + ".topologySpreadConstraints[0].labelSelector.matchLabels": {"app.kubernetes.io/name": "fountain", "app.kubernetes.io/instance": "r"},
        POD + ".topologySpreadConstraints[0].maxSkew": 1,
    }),
    ("a spread constraint with a selector keeps it", {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"a": "b"}}}]}, {
        POD + ".topologySpreadConstraints[0].labelSelector": {"matchLabels": {"a": "b"}},
    }),
    ("extra objects are templates", {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}]}, {"ConfigMap/r-more:metadata.name": "r-more"}),
]

# (sentence, values, words that Helm must say)
REFUSED = [
    ("text where a number belongs", {"replicaCount": "abc"}, ["replicaCount"]),
    ("no replicas at all", {"replicaCount": 0}, ["replicaCount"]),
    ("two replicas", {"replicaCount": 2}, ["replicaCount", "not supported yet"]),
    ("a name that does not exist", {"replicas": 1}, ["replicas"]),
    ("a name that does not exist, inside a block", {"database": {"tls": {"verified": True}}}, ["verified"]),
    ("no public URL", {"publicUrl": ""}, ["publicUrl", "https://fountain.example.com"]),
    ("a public URL without scheme", {"publicUrl": "fountain.example.com"}, ["publicUrl"]),
    ("no database", {"secrets": {"inline": {"databaseUrl": ""}}}, ["existingSecret", "inline.databaseUrl"]),
    ("a database that needs a volume", {"secrets": {"inline": {"databaseUrl": "sqlite:///data/f.db"}}}, ["postgres://", "SQLite"]),
    ("no master key", {"secrets": {"inline": {"masterSecretsKey": ""}}}, ["inline.masterSecretsKey", "basenc"]),
    ("a short master key", {"secrets": {"inline": {"masterSecretsKey": "short"}}}, ["43 characters"]),
    ("a master key with padding", {"secrets": {"inline": {"masterSecretsKey": "A" * 43 + "="}}}, ["43 characters"]),
    ("both kinds of credentials", {"secrets": {"existingSecret": "outside"}}, ["exclude each other"]),
    ("keys of a Secret that is not named", {"secrets": {"keys": {"extra": {"A": "a"}}}}, ["existingSecret", "inline.extra"]),
    ("a Job without its Secret", {"migrations": {"mode": "job"}}, ["migrations.mode=job", "existingSecret"]),
    ("an unknown way to migrate", {"migrations": {"mode": "always"}}, ["mode"]),
    ("a migration URL that nobody reads", {"secrets": {"inline": {"migrationDatabaseUrl": "postgres://a/b"}}}, ["migrations.mode=boot"]),
    ("an authority that nobody checks against", {"database": {"tls": {"ca": {"configMap": "ca"}}}}, ["database.tls.verify=true"]),
    ("two authorities", {"database": {"tls": {"verify": True, "ca": {"configMap": "a", "secret": "b"}}}}, ["not both"]),
    ("a check without encryption", {"database": {"tls": {"enabled": False, "verify": True}}}, ["database.tls.verify"]),
    ("no connections", {"database": {"poolSize": 0}}, ["poolSize"]),
    ("less time than the pause", {"shutdown": {"preStopSeconds": 10, "gracePeriodSeconds": 10}}, ["gracePeriodSeconds"]),
    ("metrics on the public port", {"metrics": {"port": 4000}}, ["metrics.port"]),
    ("a port that an ordinary user cannot open", {"server": {"port": 80}}, ["port"]),
    ("a node port without a node port Service", {"service": {"nodePort": 30000}}, ["service.nodePort"]),
    ("a setting that another value owns", {"settings": {"PORT": 5000}}, ["PORT", "server.port"]),
    ("a variable that another value owns", {"extraEnv": [{"name": "DATABASE_SSL", "value": "false"}]}, ["DATABASE_SSL", "database.tls.enabled"]),
    ("the database in a settings map", {"settings": {"DATABASE_URL": "postgres://a/b"}}, ["DATABASE_URL", "secrets"]),
    ("a token in a settings map", {"settings": {"SPRITES_TOKEN": "t"}}, ["SPRITES_TOKEN", "credential"]),
    ("a signing key in a settings map", {"settings": {"SECRET_KEY_BASE": "k"}}, ["SECRET_KEY_BASE", "credential"]),
    ("one name in both maps", {"settings": {"MODE": "a"}, "secrets": {"inline": {"extra": {"MODE": "b"}}}}, ["MODE", "both"]),
    ("a setting that is no variable", {"settings": {"sandbox-provider": "runner"}}, ["sandbox-provider"]),
    ("a setting that is a list", {"settings": {"MODE": ["a"]}}, ["MODE"]),
    ("an unknown provider", {"settings": {"SANDBOX_PROVIDER": "docker"}}, ["SANDBOX_PROVIDER"]),
    ("a provider without its credential", {"settings": {"SANDBOX_PROVIDER": "daytona"}}, ["DAYTONA_API_KEY"]),
    ("runners as provider, but switched off", {"settings": {"SANDBOX_PROVIDER": "runner", "SANDBOX_RUNNERS_ENABLED": False}}, ["SANDBOX_RUNNERS_ENABLED"]),
    ("a negative bound", {"settings": {"SANDBOX_IDLE_TIMEOUT_MINUTES": -1}}, ["SANDBOX_IDLE_TIMEOUT_MINUTES"]),
    ("a half hour given as minutes", {"settings": {"SANDBOX_IDLE_TIMEOUT_MINUTES": 0.5}}, ["SANDBOX_IDLE_TIMEOUT_MINUTES"]),
    ("a label that the chart sets", {"podLabels": {"app.kubernetes.io/name": "other"}}, ["app.kubernetes.io/name"]),
    ("a digest of the wrong length", {"image": {"digest": "sha256:abc"}}, ["digest"]),
]

#!/usr/bin/env python3
"""Tests of the Helm chart without a cluster: both Helm majors, API schemas of two Kubernetes versions, our own tables.

Usage: test_chart.py FOLDER_WITH_HELM3_AND_HELM4. Prints one line per failure and `N passed, N failed` at the end.
What schemas cannot see and a real API server does (port ranges, duplicate names, selectors) is asserted here by hand.
"""

import base64
import contextlib
import http.server
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import traceback
from pathlib import Path

import kubernetes_validate
import yaml
from cases import REFUSED, RENDERED
from helm import ABSENT, CHART, MINIMAL, Helm, Refused, address, find, pod_specs

OLDEST, NEWEST = "1.25.0", "1.37.0"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
TESTS = []


def test(function):
    TESTS.append((function.__name__.replace("_", " "), function))
    return function


def every(documents, helms=None):
    return {address(document): document for document in documents}


@test
def the_chart_has_test_values(helms):
    assert {file.name for file in CI_VALUES} >= {"minimal-values.yaml", "external-secret-values.yaml", "runners-values.yaml", "everything-values.yaml"}


@test
def both_majors_lint_every_test_value_file(helms):
    for helm in helms:
        for file in CI_VALUES:
            helm.run("lint", "--strict", str(CHART), "-f", str(file))


@test
def both_majors_render_the_same_objects(helms):
    for file in CI_VALUES:
        three, four = (every(helm.render(file)) for helm in helms)
        assert three == four, f"{file.name}: Helm 3 and Helm 4 differ"


@test
def a_rendering_is_the_same_twice(helms):
    assert helms[1].render(*CI_VALUES[:1]) == helms[1].render(*CI_VALUES[:1]), "something random is in the output"


@test
def every_object_is_valid_at_the_oldest_and_the_newest_version(helms):
    for kube in (OLDEST, NEWEST):
        for file in CI_VALUES:
            documents = helms[1].render(file, kube=kube)
            assert documents, f"{file.name} renders nothing"
            for document in documents:
                # A kind without a schema raises here; the program of the same name would only print a warning.
                kubernetes_validate.validate(document, kube, strict=True)


@test
def the_schema_check_itself_notices_a_wrong_field(helms):
    documents = helms[1].render(MINIMAL)
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    deployment["spec"]["replica"] = 1
    with expected(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)
    with expected(kubernetes_validate.SchemaNotFoundError):
        kubernetes_validate.validate({"apiVersion": "example.com/v1", "kind": "Well", "metadata": {"name": "a"}}, NEWEST, strict=True)


@test
def a_version_before_the_oldest_is_refused(helms):
    for helm in helms:
        with expected(Refused, "1.24"):
            helm.render(MINIMAL, kube="1.24.0")


@test
def the_pause_needs_no_shell_on_old_versions_either(helms):
    documents = helms[1].render(MINIMAL, kube="1.29.0")
    hook = find(documents, "Deployment/r-fountain:spec.template.spec.containers[name=fountain].lifecycle.preStop")
    assert hook == {"exec": {"command": ["/bin/sleep", "5"]}}, hook


@test
def our_pods_meet_the_restricted_profile(helms):
    for file in CI_VALUES:
        for owner, _, spec in pod_specs(helms[1].render(file)):
            pod = spec["securityContext"]
            assert pod["runAsNonRoot"] is True and pod["runAsUser"] == 1001 and pod["fsGroup"] == 1001, owner
            assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, owner
            assert spec["automountServiceAccountToken"] is False, owner
            assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), owner
            assert all({"emptyDir", "configMap", "secret"} & volume.keys() for volume in spec["volumes"]), owner
            ours = [c for c in spec["containers"] + spec.get("initContainers", []) if c["name"] in ("fountain", "migrate")]
            assert ours, f"{owner} has no container of ours"
            for container in ours:
                context = container["securityContext"]
                assert context["allowPrivilegeEscalation"] is False, container["name"]
                assert context["readOnlyRootFilesystem"] is True, container["name"]
                assert context["capabilities"] == {"drop": ["ALL"]}, container["name"]
                assert {"requests", "limits"} <= container["resources"].keys(), container["name"]


@test
def no_credential_stands_outside_a_secret(helms):
    values = {"secrets": {"inline": {"databaseUrl": "postgres://u:hunter2@h/d", "masterSecretsKey": "K" * 43, "extra": {"E2B_API_KEY": "hunter3"}}}}
    for document in helms[1].render(MINIMAL, values=values):
        if document["kind"] != "Secret":
            text = json.dumps(document)
            assert not any(secret in text for secret in ("hunter2", "hunter3", "K" * 43)), address(document)


@test
def every_reference_leads_to_something(helms):
    """Ports by name, the ConfigMap, the Secret, the service account and the selectors."""
    for file in CI_VALUES:
        documents = helms[1].render(file)
        objects = every(documents)
        deployment = objects["Deployment/r-fountain"]["spec"]
        template = deployment["template"]
        server = next(c for c in template["spec"]["containers"] if c["name"] == "fountain")
        ports = {port["name"]: port["containerPort"] for port in server["ports"]}
        assert len(set(ports.values())) == len(server["ports"]) and all(1024 <= p <= 65535 for p in ports.values()), ports
        assert deployment["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        for document in documents:
            if document["kind"] == "Service":
                assert document["spec"]["selector"] == deployment["selector"]["matchLabels"], address(document)
                for port in document["spec"]["ports"]:
                    assert port["targetPort"] in ports, f"{address(document)} leads to no port"
                    assert 30000 <= port.get("nodePort", 30000) <= 32767
        assert "ConfigMap/" + server["envFrom"][0]["configMapRef"]["name"] in objects
        inline = "Secret/r-fountain" in objects
        for owner, _, spec in pod_specs(documents):
            for container in spec["containers"] + spec.get("initContainers", []):
                names = [variable["name"] for variable in container.get("env", [])]
                assert len(names) == len(set(names)), f"{owner}/{container['name']}: a variable is given twice"
                for variable in container.get("env", []):
                    ref = variable.get("valueFrom", {}).get("secretKeyRef")
                    if ref and inline:
                        assert ref["key"] in objects["Secret/r-fountain"]["data"], f"{variable['name']} leads to no key"
            for container in spec["containers"] + spec.get("initContainers", []):
                for mount in container.get("volumeMounts", []):
                    assert mount["name"] in {volume["name"] for volume in spec["volumes"]}, f"{owner}: {mount} has no volume"


@test
def a_job_pod_is_never_behind_a_service(helms):
    documents = helms[1].render(CHART / "ci" / "external-secret-values.yaml")
    selector = find(documents, "Service/r-fountain:spec.selector")
    labels = find(documents, "Job/r-fountain-migrate:spec.template.metadata.labels")
    assert not selector.items() <= labels.items(), labels


@test
def two_releases_in_one_namespace_do_not_collide(helms):
    for file in CI_VALUES:
        one, two = helms[1].render(file, release="a"), helms[1].render(file, release="b")
        assert not every(one).keys() & every(two).keys(), every(one).keys() & every(two).keys()
        selector = find(one, "Deployment/a-fountain:spec.selector.matchLabels")
        for _, metadata, _ in pod_specs(two):
            assert not selector.items() <= metadata["labels"].items(), "one release would select the other's pods"


@test
def long_release_names_still_give_valid_and_distinct_names(helms):
    long = "a" * 53
    documents = helms[1].render(CHART / "ci" / "external-secret-values.yaml", release=long)
    services = [document for document in documents if document["kind"] == "Service"]
    names = [document["metadata"]["name"] for document in documents if document["kind"] in ("Service", "Job")]
    assert len(services) == 2 and len(names) == len(set(names)) == 3, names
    for document in documents:
        name = document["metadata"]["name"]
        assert len(name) <= 63 and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), name


@test
def a_changed_setting_or_secret_replaces_the_pod(helms):
    def sums(values):
        annotations = find(helms[1].render(MINIMAL, values=values), "Deployment/r-fountain:spec.template.metadata.annotations")
        return annotations["checksum/config"], annotations["checksum/secret"]

    plain = sums({})
    setting = sums({"settings": {"PRODUCT_NAME": "Well"}})
    secret = sums({"secrets": {"inline": {"extra": {"A": "b"}}}})
    assert plain[0] != setting[0] and plain[1] == setting[1]
    assert plain[0] == secret[0] and plain[1] != secret[1]


@test
def everything_wrong_is_said_at_once(helms):
    with expected(Refused, "publicUrl", "inline.databaseUrl", "inline.masterSecretsKey"):
        helms[1].render()


@test
def rul_61_the_notes_name_the_first_account_and_the_backup_of_the_master_key(helms):
    with cluster({}) as options:
        for helm in helms:
            notes = helm.run("install", "r", str(CHART), "-f", str(MINIMAL), "--dry-run=client", "--namespace", "well", *options)
            for words in ("fountain account create --email", "exec deployment/r-fountain", "BACK UP THE MASTER KEY", "certificate is not checked", "--namespace well"):
                assert words in notes, f"{helm.name}: the notes do not say {words!r}"


@test
def an_upgrade_with_another_master_key_is_refused(helms):
    def installed(key):
        owner = {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "default"}
        metadata = {"name": "r-fountain", "namespace": "default", "labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": owner}
        return {"metadata": metadata, "data": {"MASTER_SECRETS_KEY": base64.b64encode(key.encode()).decode()}}

    def upgrade(helm, options, **secrets):
        return helm.render(MINIMAL, values={"secrets": secrets}, kube="1.30.0", options=("--dry-run=server", *options))

    key = yaml.safe_load(MINIMAL.read_text())["secrets"]["inline"]["masterSecretsKey"]
    for helm in helms:
        with cluster(installed("Z" * 43)) as options:
            with expected(Refused, "another MASTER_SECRETS_KEY", "allowMasterKeyChange"):
                upgrade(helm, options)
            assert upgrade(helm, options, allowMasterKeyChange=True)
        with cluster(installed(key)) as options:
            assert upgrade(helm, options)


@test
def values_and_schema_name_the_same_things(helms):
    def compare(values, schema, where):
        properties = schema.get("properties")
        if not isinstance(values, dict) or properties is None or schema.get("additionalProperties") is not False:
            return
        assert values.keys() == properties.keys() - {"global"}, f"{where}: {sorted(values.keys() ^ (properties.keys() - {'global'}))}"
        for key, value in values.items():
            compare(value, properties[key], f"{where}.{key}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()), "values")


@test
def the_readme_lists_the_values_as_they_are(helms):
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("readme.py")), "--check"])
    assert done.returncode == 0, "run python3 tests/chart/readme.py"


@test
def the_chart_and_the_program_have_one_version(helms):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    manifest = (CHART.parents[1] / "Cargo.toml").read_text()
    version = re.search(r'(?ms)^\[workspace\.package\].*?^version = "([^"]+)"', manifest).group(1)
    assert chart["version"] == chart["appVersion"] == version, (chart["version"], chart["appVersion"], version)


@test
def the_package_holds_no_test_values(helms):
    with tempfile.TemporaryDirectory() as folder:
        helms[1].run("package", str(CHART), "-d", folder)
        names = tarfile.open(next(Path(folder).glob("*.tgz"))).getnames()
    assert "fountain/values.schema.json" in names and not any("/ci/" in name for name in names), names


@contextlib.contextmanager
def expected(kind, *words):
    """The block must raise `kind`, and its text must hold all the words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the refusal does not say {missing}: {error}"
    else:
        raise AssertionError(f"nothing was refused; expected {kind.__name__} with {words}")


@contextlib.contextmanager
def cluster(secret):
    """A double of as much of the API as `lookup` and a dry run ask for; yields the options that lead Helm to it."""
    def resources(version, *kinds):
        listed = [{"name": kind.lower() + "s", "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get", "list"]} for kind in kinds]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": listed}

    apps = {"groupVersion": "apps/v1", "version": "v1"}
    answers = {
        "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps", "versions": [apps], "preferredVersion": apps}]},
        "/api/v1": resources("v1", "ConfigMap", "Secret", "Service", "ServiceAccount"),
        "/apis/apps/v1": resources("apps/v1", "Deployment"),
    }
    if secret:
        where = "/api/v1/namespaces/{namespace}/secrets/{name}".format(**secret["metadata"])
        answers[where] = {"apiVersion": "v1", "kind": "Secret"} | secret

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path.partition("?")[0])
            body = answer or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            data = json.dumps(body).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield ("--kube-apiserver", f"http://127.0.0.1:{server.server_port}", "--disable-openapi-validation")
    finally:
        server.shutdown()
        server.server_close()


def rows(helms):
    """The tables, one test a row."""
    for sentence, values, wanted in RENDERED:
        def rendered(values=values, wanted=wanted):
            documents = helms[1].render(MINIMAL, values=values)
            for path, value in wanted.items():
                got = find(documents, path)
                shown = "nothing" if got is ABSENT else repr(got)
                assert got == value, f"{path} is {shown}, expected {'nothing' if value is ABSENT else repr(value)}"
        yield "rendered: " + sentence, rendered
    for sentence, values, words in REFUSED:
        for helm in helms:
            def refused(helm=helm, values=values, words=words):
                with expected(Refused, *words):
                    helm.render(MINIMAL, values=values)
            yield f"refused by {helm.name}: {sentence}", refused


def main():
    tools = Path(sys.argv[1])
    helms = (Helm(tools / "helm3"), Helm(tools / "helm4"))
    assert helms[0].run("version", "--short").startswith("v3.") and helms[1].run("version", "--short").startswith("v4.")
    passed, failed = 0, 0
    todo = [(name, lambda function=function: function(helms)) for name, function in TESTS] + list(rows(helms))
    for name, run in todo:
        try:
            run()
            passed += 1
        except Exception as error:
            failed += 1
            print(f"FAILED {name}")
            if not isinstance(error, AssertionError):
                traceback.print_exc(file=sys.stdout)
            print(f"  {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()

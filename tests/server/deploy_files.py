"""The deployment files: Kubernetes accepts the manifests, and the programs accept what the files tell them to do.

No container engine is needed, so images are not built here.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

import kubernetes_validate
import yaml
from serving import PROGRAM, ROOT, Checks, Server, get

DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.34", "1.37")


def manifests():
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document


def container(kind):
    document = next(d for _, d in manifests() if d["kind"] == kind)
    return document["spec"]["template"]["spec"], document["spec"]["template"]["spec"]["containers"][0]


def options_of(*words):
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][\w-]*", text))


def settings():
    config = next(d for _, d in manifests() if d["kind"] == "ConfigMap")
    return tomllib.loads(config["data"]["forerun.toml"])


def words_of(path, instruction):
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{instruction} ["))
    return yaml.safe_load(line.removeprefix(instruction))


def main():
    checks = Checks("deploy: manifests, config and container files")
    for path, document in manifests():
        if document["kind"] == "Kustomization":
            listed = {DEPLOY / "kubernetes" / name for name in document["resources"]}
            checks.that("the kustomization lists every manifest", listed | {path} == set((DEPLOY / "kubernetes").glob("*.yaml")))
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
                wrong = ""
            except kubernetes_validate.ValidationError as error:
                wrong = f"{'.'.join(map(str, error.path))}: {error.message}"
            checks.that(f"Kubernetes {version} accepts {document['kind']} {document['metadata']['name']}", not wrong, wrong)

    serve, launch = options_of(PROGRAM, "serve", "--help"), options_of(pathlib.Path(sys.executable).parent / "sglang-router", "launch", "--help")
    given = {word.split("=")[0] for word in container("Deployment")[1]["args"]}
    checks.that("the router knows its options", given <= launch, str(given - launch))
    given = {word for word in words_of(DEPLOY / "Containerfile", "CMD") if word.startswith("--")}
    checks.that("the server knows the options of the container file", given <= serve, str(given - serve))
    pod, served = container("StatefulSet")
    pause = served["lifecycle"]["preStop"]["sleep"]["seconds"]
    checks.that("the grace period covers the drain", pod["terminationGracePeriodSeconds"] > settings()["drain"] + pause)
    mounted = [mount["mountPath"] for mount in served["volumeMounts"]]
    checks.that("the disk cache is on a volume", settings()["cache-dir"] in mounted, settings().get("cache-dir", ""))

    with tempfile.TemporaryDirectory() as folder:
        # The config as it is, but with this machine's paths and address.
        text = next(d for _, d in manifests() if d["kind"] == "ConfigMap")["data"]["forerun.toml"]
        text = text.replace("/usr/share/forerun", str(ROOT)).replace('host = "0.0.0.0"', 'host = "127.0.0.1"').replace("/var/lib/forerun/cache", folder)
        config = pathlib.Path(folder) / "forerun.toml"
        config.write_text(text)
        with Server("--config", config, key="test") as server:
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = served[name]["httpGet"]["path"]
                checks.that(f"{name} {path} answers without a key", get(f"{server.url}{path}")[0] == 200)
            probe = words_of_healthcheck().replace("/8080", f"/{server.port}")
            checks.that("the container's health check passes", subprocess.run(["bash", "-c", probe]).returncode == 0)
            checks.that("the server started with the config file ends well", server.stop() == 0)
        checks.that("the container's health check fails without a server", subprocess.run(["bash", "-c", probe], capture_output=True).returncode != 0)
    checks.finish()


def words_of_healthcheck():
    line = next(line.strip() for line in (DEPLOY / "Containerfile").read_text().splitlines() if line.strip().startswith("CMD [\"bash\""))
    return yaml.safe_load(line.removeprefix("CMD"))[2]


if __name__ == "__main__":
    main()

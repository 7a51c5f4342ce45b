//! Checks the Helm chart: `helm lint`, and a strict decoding of the rendered manifests with the types of the Kubernetes
//! API.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::finish;
use crate::tally::Tally;

/// The version of Kubernetes for which helm renders the templates. A helm that is built from its Go module has no
/// default version.
const KUBERNETES_VERSION: &str = "1.34.0";

/// Values, and the kinds of manifests that helm must render with them.
struct ChartCase {
    name: &'static str,
    values: &'static [&'static str],
    kinds: &'static [&'static str],
    /// Parts of the manifests.
    texts: &'static [&'static str],
}

const CASES: [ChartCase; 4] = [
    ChartCase {
        name: "helm: DaemonSet",
        values: &["podMonitor.enabled=true", "tlsSecret=tls"],
        kinds: &["Secret", "DaemonSet", "PodMonitor"],
        texts: &[],
    },
    ChartCase {
        name: "helm: StatefulSet",
        values: &[
            "mode=StatefulSet",
            "autoscaling.enabled=true",
            "podMonitor.enabled=true",
            "offload=kernel",
            "tlsSecret=tls",
        ],
        kinds: &[
            "HorizontalPodAutoscaler",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "PodMonitor",
            "Secret",
            "Service",
            "Service",
            "Service",
            "Service",
            "Service",
            "StatefulSet",
        ],
        texts: &[],
    },
    ChartCase {
        name: "helm: StatefulSet with a Secret of the user",
        values: &[
            "mode=StatefulSet",
            "existingSecret=mine",
            "networkPolicy.enabled=false",
            "statefulset.services=2",
        ],
        kinds: &[
            "PodDisruptionBudget",
            "Service",
            "Service",
            "Service",
            "StatefulSet",
        ],
        texts: &[],
    },
    ChartCase {
        name: "helm: a database at a private address",
        values: &[
            "mode=StatefulSet",
            "existingSecret=mine",
            "statefulset.services=2",
            "networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.7/32",
            "networkPolicy.egress[0].ports[0].port=6379",
        ],
        kinds: &[
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Service",
            "Service",
            "Service",
            "StatefulSet",
        ],
        texts: &["cidr: 10.0.0.7/32", "port: 6379"],
    },
];

/// Invalid values, and a part of the error that helm must print.
const INVALID_VALUES: [(&[&str], &str); 3] = [
    (&["autoscaling.enabled=true"], "requires mode StatefulSet"),
    (&["mode=Deployment"], "mode must be"),
    (
        &["mode=StatefulSet", "statefulset.replicas=9"],
        "each pod needs a Service",
    ),
];

/// Builds helm and the decoder, and checks the chart.
pub(super) fn run(root: &Path, folder: &Path, tally: &mut Tally) {
    let helm = match Helm::build(root, folder) {
        Ok(helm) => helm,
        Err(error) => return tally.record("helm", &Err(error)),
    };
    let lint = finish(
        Command::new(&helm.helm)
            .args(["lint", "--strict"])
            .arg(&helm.chart),
    );
    tally.record("helm lint", &lint.map(|_| "no warnings".to_owned()));
    for case in &CASES {
        tally.record(case.name, &helm.decodes(folder, case));
    }
    tally.record("helm: values that make no sense", &helm.refuses());
}

struct Helm {
    helm: PathBuf,
    decoder: PathBuf,
    chart: PathBuf,
}

impl Helm {
    /// Builds both programs; `go.sum` pins every module.
    fn build(root: &Path, folder: &Path) -> Result<Self> {
        let build = |package: &str, to: &str| -> Result<PathBuf> {
            let program = folder.join(to);
            finish(
                Command::new("go")
                    .args(["build", "-mod=readonly", "-o"])
                    .arg(&program)
                    .arg(package)
                    .current_dir(root.join("interop/helm")),
            )?;
            Ok(program)
        };
        Ok(Self {
            helm: build("helm.sh/helm/v3/cmd/helm", "helm")?,
            decoder: build(".", "helm-manifests")?,
            chart: root.join("deploy/helm/hairpin"),
        })
    }

    fn template(&self, values: &[&str]) -> Command {
        let mut command = Command::new(&self.helm);
        command
            .args(["template", "test"])
            .arg(&self.chart)
            .args(["--kube-version", KUBERNETES_VERSION]);
        for value in values {
            command.args(["--set", value]);
        }
        command
    }

    fn decodes(&self, folder: &Path, case: &ChartCase) -> Result<String> {
        let manifests = folder.join("manifests.yaml");
        let text = finish(&mut self.template(case.values))?;
        for part in case.texts {
            ensure!(text.contains(part), "the manifests have no `{part}`");
        }
        fs::write(&manifests, text)?;
        let from = fs::File::open(&manifests)?;
        let mut decoder = Command::new(&self.decoder);
        let said = finish(decoder.args(case.kinds).stdin(Stdio::from(from)))?;
        Ok(said.trim().to_owned())
    }

    fn refuses(&self) -> Result<String> {
        for (values, reason) in INVALID_VALUES {
            let output = self
                .template(values)
                .output()
                .context("cannot start helm")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(
                !output.status.success() && said.contains(reason),
                "helm does not reject the values {values:?} with `{reason}`: {said}"
            );
        }
        Ok(format!("{} refused", INVALID_VALUES.len()))
    }
}

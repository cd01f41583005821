//! csi-sanity, the test suite of the CSI specification, run on the node that has the controller, as TopoLVM's own
//! end-to-end tests run it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab_protocol::agent::Ended;

use crate::cluster::Cluster;
use crate::peers::topolvm::{self, CONTROLLER_SOCKET, NODE_DIRECTORY};
use crate::{process, progress};

/// It makes some dozens of volumes, and an emulated node is slow.
const LIMIT: Duration = Duration::from_secs(3000);

/// Runs it on volumes of this kind, without the specs that match one of `skip`.
/// At least `baseline` specs must pass: as many as when the lab was made.
pub(super) fn run(
    cluster: &Cluster,
    kind: &str,
    parameters: Option<&str>,
    skip: &[&str],
    baseline: u32,
) -> Result<()> {
    let step = progress::step(format!("csi-sanity on {kind} volumes"));
    let guest = &topolvm::controller_node(cluster)?.guest;
    let (mounts, staging) =
        (format!("{NODE_DIRECTORY}/{kind}-mounts"), format!("{NODE_DIRECTORY}/{kind}-staging"));
    // It makes these itself, and fails if a run that was cut off has left them.
    guest.command(["rm", "-rf", &mounts, &staging]).run()?;
    let mut words = vec![
        "/opt/lab/bin/csi-sanity".to_owned(),
        "--ginkgo.no-color".to_owned(),
        format!("--csi.endpoint={NODE_DIRECTORY}/csi-topolvm.sock"),
        format!("--csi.controllerendpoint={CONTROLLER_SOCKET}"),
        format!("--csi.mountdir={mounts}"),
        format!("--csi.stagingdir={staging}"),
        "--csi.testvolumesize=1073741824".to_owned(),
    ];
    words.extend(skip.iter().map(|specs| format!("--ginkgo.skip={specs}")));
    if let Some(parameters) = parameters {
        let path = format!("/run/csi-sanity-{kind}.yaml");
        guest.put(&path, 0o644, parameters)?;
        words.push(format!("--csi.testvolumeparameters={path}"));
    }
    let ran = guest.command(words).limit(LIMIT).output()?;
    let said = format!("{}\n{}", ran.text(), ran.complaint());
    fs::write(format!("csi-sanity-{kind}.log"), &said)?;
    let last_words = || format!("csi-sanity {:?}:\n{}", ran.ended, process::last_lines(&said, 40));
    let counts = Counts::parse(&said).with_context(last_words)?;
    ensure!(ran.ended == Ended::Exited(0) && counts.failed == 0, "{}", last_words());
    ensure!(counts.passed >= baseline, "{baseline} specs used to pass on {kind} volumes, now {counts:?}");
    step.done();
    eprintln!("  csi-sanity on {kind} volumes: {} passed, {} skipped", counts.passed, counts.skipped);
    Ok(())
}

/// How many specs did what.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Counts {
    /// From Ginkgo's last line, `SUCCESS! -- 5 Passed | 0 Failed | 1 Pending | 86 Skipped`.
    fn parse(text: &str) -> Result<Counts> {
        let summary = text.lines().rev().find_map(|line| line.split_once("! -- "));
        let (_, summary) = summary.context("Ginkgo has printed no summary")?;
        let count = |verdict: &str| {
            let number = summary.split(" | ").find_map(|part| part.trim().strip_suffix(verdict));
            number
                .and_then(|number| number.trim().parse().ok())
                .with_context(|| format!("no {verdict} in {summary:?}"))
        };
        Ok(Counts { passed: count("Passed")?, failed: count("Failed")?, skipped: count("Skipped")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ginkgos_summary_is_read() {
        let text =
            "Ran 5 of 92 Specs in 0.020 seconds\nSUCCESS! -- 5 Passed | 0 Failed | 1 Pending | 86 Skipped\n";
        assert_eq!(Counts::parse(text).unwrap(), Counts { passed: 5, failed: 0, skipped: 86 });
        let text =
            "Ran 3 of 92 Specs in 1.5 seconds\nFAIL! -- 1 Passed | 2 Failed | 0 Pending | 89 Skipped\n";
        assert_eq!(Counts::parse(text).unwrap(), Counts { passed: 1, failed: 2, skipped: 89 });
        assert!(Counts::parse("panic: no socket").is_err());
    }
}

//! Clients that repeat themselves.

use super::{Run, Stage};
use crate::load::workload;
use crate::report::Report;
use crate::world::{Needs, Provider, World};

pub(super) const ABOUT: &str = "500 buyers for 600 units, each wants 1 to 3 and sends its request 1 to 5 times: some copies at the same \
     instant, some later, one in four with another body. One key is one order, every replay has the same bytes and is marked, and \
     another body is refused with 422.";

const MAX_QUANTITY: u32 = 3;

/// The provider is quick, so that the run is.
pub(super) fn needs() -> Needs {
    let provider = Provider {
        latency_min_ms: 50,
        latency_max_ms: 200,
        ..Provider::default()
    };
    Needs {
        provider,
        ..Needs::default()
    }
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    let mut stage = Stage::open(run, world).await?;
    stage
        .rush(workload::repeated(run.seed, run.buyers, MAX_QUANTITY), true)
        .await?;
    stage.settle().await?;
    stage.report(|_, _| {}).await
}

//! The provider of `in_doubt` in two steps: it sets money aside, and takes it when it is told to.

use super::{Run, in_doubt};
use crate::report::Report;
use crate::world::{Needs, World};

pub(super) const ABOUT: &str = "300 orders in two steps, authorised and then captured, by a provider that stores a 500 for every second charge, doesn't answer \
     others nor their captures, and is then away for longer than the cutoff. What may have been captured stays held; what was only \
     authorised is failed at the cutoff, and voided when the provider is back. At the end none failed and was charged, and nothing is set \
     aside for nobody.";

pub(super) fn needs(run: &Run) -> Needs {
    let mut needs = in_doubt::needs(run);
    needs.settings.push(("provider.two_step", "true".to_owned()));
    needs
}

pub(super) async fn play(run: &Run, world: &World) -> anyhow::Result<Report> {
    in_doubt::while_away(run, world, "CAPTURING").await
}

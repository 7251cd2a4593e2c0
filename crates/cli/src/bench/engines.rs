//! The engines the arms run on: one per set of drafters, all loaded before anything is measured.

use super::arm::Drafters;
use super::plan::Plan;
use crate::args::DeviceArgs;
use crate::load::{Loaded, Source};
use anyhow::bail;
use forerun_engine::{Engine, ModelRunner};

pub(super) struct Engines {
    loaded: Vec<Loaded>,
    /// By arm, the place of its engine.
    of_arm: Vec<usize>,
}

impl Engines {
    /// Plain shares the engine of the first arm that drafts: a second copy of the weights may not
    /// fit, and two copies are rarely equally fast.
    pub(super) fn load(source: &Source, plan: &Plan, device: DeviceArgs) -> anyhow::Result<Self> {
        let has_head = source.blueprint.spec.drafter.is_some();
        let wanted = |drafters: Option<Drafters>| drafters.map(|d| d.in_model(has_head));
        let shared = wanted(plan.arms.iter().find_map(|arm| arm.drafters()));
        let mut sets: Vec<Option<Drafters>> = Vec::new();
        let mut engines = Self { loaded: Vec::new(), of_arm: Vec::new() };
        for arm in &plan.arms {
            let set = wanted(arm.drafters()).or(shared);
            let place = sets.iter().position(|&known| known == set);
            if place.is_none() {
                sets.push(set);
                engines.loaded.push(source.load(&plan.settings(set), device)?);
            }
            engines.of_arm.push(place.unwrap_or(sets.len() - 1));
            let off = engines.of(engines.of_arm.len() - 1).speculation_off();
            if let (Some(_), Some(why)) = (arm.drafters(), off) {
                bail!("arm {arm}: {why}");
            }
        }
        Ok(engines)
    }

    /// The engine of an arm.
    pub(super) fn of(&mut self, arm: usize) -> &mut Engine<ModelRunner> {
        &mut self.loaded[self.of_arm[arm]].engine
    }

    /// All of them, each once.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Engine<ModelRunner>> {
        self.loaded.iter_mut().map(|loaded| &mut loaded.engine)
    }
}

//! The engines the arms run on: one per set of drafters, all loaded before anything is measured.

use crate::arm::ArmDrafters;
use crate::plan::BenchPlan;
use crate::{BenchError, LoadModel};
use forerun_engine::{Engine, ModelRunner};

pub(crate) struct ArmEngines {
    loaded: Vec<Engine<ModelRunner>>,
    /// By arm, the place of its engine.
    of_arm: Vec<usize>,
}

impl ArmEngines {
    /// Plain shares the engine of the first arm that drafts: a second copy of the weights may not
    /// fit, and two copies are rarely equally fast.
    pub(crate) fn load(
        plan: &BenchPlan,
        has_head: bool,
        load: &mut dyn LoadModel,
    ) -> Result<Self, BenchError> {
        let wanted = |drafters: Option<ArmDrafters>| drafters.map(|d| d.in_model(has_head));
        let shared = wanted(plan.arms.iter().find_map(|arm| arm.drafters()));
        let mut sets: Vec<Option<ArmDrafters>> = Vec::new();
        let mut engines = Self { loaded: Vec::new(), of_arm: Vec::new() };
        for arm in &plan.arms {
            let set = wanted(arm.drafters()).or(shared);
            let place = sets.iter().position(|&known| known == set);
            if place.is_none() {
                sets.push(set);
                let mut engine = load.engine(&plan.settings(set)).map_err(BenchError::Load)?;
                engine.script_acceptance(plan.acceptance.clone());
                engines.loaded.push(engine);
            }
            engines.of_arm.push(place.unwrap_or(sets.len() - 1));
            let off = engines.of(engines.of_arm.len() - 1).speculation_off();
            if let (Some(_), Some(why)) = (arm.drafters(), off) {
                return Err(BenchError::ArmOff { arm: arm.to_string(), why });
            }
        }
        Ok(engines)
    }

    /// The engine of an arm.
    pub(crate) fn of(&mut self, arm: usize) -> &mut Engine<ModelRunner> {
        &mut self.loaded[self.of_arm[arm]]
    }

    /// All of them, each once.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Engine<ModelRunner>> {
        self.loaded.iter_mut()
    }
}

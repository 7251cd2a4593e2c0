//! Rotary frequencies from a config.

use super::rule::yarn_strength;
use super::{RopeRule, RopeSpec};
use crate::ModelError;
use crate::config::Config;

/// What holds where a config says nothing.
pub(crate) struct RopeDefaults {
    /// Base of the frequencies.
    pub(crate) theta: f64,
    /// How much of a head is rotated.
    pub(crate) fraction: f64,
}

/// Where a config says how heads are rotated.
pub(crate) struct RopeSource<'a> {
    /// The section to look in first: `rope_parameters`, or one layer type's part of it.
    pub(crate) parameters: Option<Config<'a>>,
    /// The older spelling of the rule.
    pub(crate) scaling: Option<Config<'a>>,
    /// Where `rope_theta` and `partial_rotary_factor` stand otherwise.
    pub(crate) config: Config<'a>,
}

impl<'a> RopeSource<'a> {
    /// Both spellings: `rope_theta` and `rope_scaling` at the top, or `rope_parameters`.
    pub(crate) fn of(config: &Config<'a>) -> Self {
        Self {
            parameters: config.section("rope_parameters"),
            scaling: config.section("rope_scaling"),
            config: config.clone(),
        }
    }

    /// One layer type's section alone.
    pub(crate) fn section(config: &Config<'a>, section: Option<Config<'a>>) -> Self {
        Self { parameters: section, scaling: None, config: config.clone() }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        for source in self.parameters.iter().chain([&self.config]) {
            if let Some(x) = source.maybe_number(key)? {
                return Ok(Some(x));
            }
        }
        Ok(None)
    }

    fn theta(&self, default: f64) -> Result<f64, ModelError> {
        let theta = self.number("rope_theta")?.unwrap_or(default);
        // Powers of it are taken in f32.
        if theta > 1.0 && theta <= 1e30 {
            return Ok(theta);
        }
        Err(self.config.bad("rope_theta", format!("is {theta}, expected more than 1")))
    }

    fn fraction(&self, default: f64) -> Result<f64, ModelError> {
        let fraction = self.number("partial_rotary_factor")?.unwrap_or(default);
        if (0.0..=1.0).contains(&fraction) {
            return Ok(fraction);
        }
        let problem = format!("is {fraction}, expected 0 to 1");
        Err(self.config.bad("partial_rotary_factor", problem))
    }

    /// Frequencies under the section's rule.
    pub(crate) fn rule_on(&self, spec: RopeSpec) -> Result<RopeSpec, ModelError> {
        let Some(section) = &self.parameters else { return Ok(spec) };
        let rule = rule(section, &self.config, spec.rotary / 2)?;
        Ok(spec.rescaled(&rule))
    }

    /// The frequencies of heads `head_dim` wide.
    pub(crate) fn read(
        &self,
        head_dim: usize,
        defaults: RopeDefaults,
    ) -> Result<RopeSpec, ModelError> {
        let theta = self.theta(defaults.theta)?;
        let fraction = self.fraction(defaults.fraction)?;
        let section = self.parameters.as_ref().or(self.scaling.as_ref());
        let kind = section.map(kind).transpose()?.unwrap_or("default");
        let rotated = head_dim as f64 * fraction;
        // "Proportional" spreads the powers over the whole head and leaves the rest standing.
        let proportional = kind == "proportional";
        let rotary = if proportional { head_dim } else { rotated as usize };
        if !rotary.is_multiple_of(2) {
            let problem = format!("rotates {rotary} of {head_dim} dims, expected an even number");
            return Err(self.config.bad("partial_rotary_factor", problem));
        }
        let spec = RopeSpec::new(rotary, theta);
        let pairs = if proportional { (rotated / 2.0) as usize } else { rotary / 2 };
        let Some(section) = section else { return Ok(spec) };
        let rule = rule(section, &self.config, rotary / 2)?;
        Ok(spec.standing(|pair| pair >= pairs || rule.stops(pair)).rescaled(&rule))
    }
}

/// What a rope section calls its rule.
fn kind<'a>(section: &Config<'a>) -> Result<&'a str, ModelError> {
    let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
    Ok(section.text(key)?.unwrap_or("default"))
}

/// The rule that a rope section names.
fn rule(section: &Config<'_>, config: &Config<'_>, pairs: usize) -> Result<RopeRule, ModelError> {
    let number = |key: &str| section.positive(key, None);
    match kind(section)? {
        // Three equal position rows for text make mrope ordinary rope.
        "default" | "mrope" => Ok(RopeRule::None),
        "proportional" => match section.maybe_number("factor")? {
            None => Ok(RopeRule::None),
            Some(_) => Ok(RopeRule::Linear { factor: number("factor")? }),
        },
        "linear" => Ok(RopeRule::Linear { factor: number("factor")? }),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if high <= low {
                return Err(section.bad("high_freq_factor", "must be more than low_freq_factor"));
            }
            Ok(RopeRule::Llama3 {
                factor: number("factor")? as f32,
                low: low as f32,
                high: high as f32,
                context: number("original_max_position_embeddings")? as f32,
            })
        }
        "yarn" => yarn(section, config),
        "factors" => {
            let list = section.list("factors")?.unwrap_or_default();
            let factors: Vec<f32> =
                list.iter().filter_map(|f| f.as_f64()).map(|f| f as f32).collect();
            if factors.len() != pairs || list.len() != pairs || factors.iter().any(|&f| f <= 0.0) {
                let problem =
                    format!("has {} entries, expected {pairs} numbers above 0", list.len());
                return Err(section.bad("factors", problem));
            }
            Ok(RopeRule::Factors(factors))
        }
        _ => {
            let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
            Err(section.unsupported(key))
        }
    }
}

fn yarn(section: &Config<'_>, config: &Config<'_>) -> Result<RopeRule, ModelError> {
    let reach = config.maybe_count("max_position_embeddings")?;
    let original = section.maybe_count("original_max_position_embeddings")?;
    let context = match original.or(reach) {
        Some(context) if context > 0 => context,
        _ => return Err(section.bad("original_max_position_embeddings", "is missing")),
    };
    let factor = match (section.maybe_number("factor")?, reach) {
        (None, Some(reach)) if original.is_some() => reach as f64 / context as f64,
        _ => section.positive("factor", None)?,
    };
    let scale = match section.maybe_number("attention_factor")? {
        Some(_) => Some(section.positive("attention_factor", None)?),
        None => match (section.maybe_number("mscale")?, section.maybe_number("mscale_all_dim")?) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                Some(yarn_strength(factor, m) / yarn_strength(factor, all))
            }
            _ => None,
        },
    };
    Ok(RopeRule::Yarn {
        factor,
        context,
        fast: section.positive("beta_fast", Some(32.0))?,
        slow: section.positive("beta_slow", Some(1.0))?,
        whole: section.flag("truncate", true)?,
        scale,
    })
}

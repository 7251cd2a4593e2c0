//! Rotary frequencies from a config.

use crate::ModelError;
use crate::config::Config;

/// Which dims turn, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Dims of a head that turn, from the first.
    pub rotary: usize,
    /// Radians per position of each pair, `rotary / 2` numbers.
    pub inv_freq: Vec<f32>,
}

impl RopeSpec {
    /// Reads both spellings: `rope_theta` and `rope_scaling` at the top, or `rope_parameters`.
    pub(crate) fn read(
        config: &Config<'_>,
        head_dim: usize,
        default_fraction: f64,
    ) -> Result<Self, ModelError> {
        let parameters = config.section("rope_parameters");
        let scaling = config.section("rope_scaling");
        let sources: Vec<&Config<'_>> = parameters.iter().chain([config]).collect();
        let number = |key: &str| -> Result<Option<f64>, ModelError> {
            for source in &sources {
                if let Some(x) = source.maybe_number(key)? {
                    return Ok(Some(x));
                }
            }
            Ok(None)
        };
        let theta = number("rope_theta")?.unwrap_or(10_000.0);
        let fraction = number("partial_rotary_factor")?.unwrap_or(default_fraction);
        if theta <= 0.0 {
            return Err(config.bad("rope_theta", format!("is {theta}, expected more than 0")));
        }
        if !(0.0..=1.0).contains(&fraction) {
            let problem = format!("is {fraction}, expected 0 to 1");
            return Err(config.bad("partial_rotary_factor", problem));
        }
        let rotary = (head_dim as f64 * fraction) as usize;
        if !rotary.is_multiple_of(2) {
            let problem = format!("turns {rotary} of {head_dim} dims, expected an even number");
            return Err(config.bad("partial_rotary_factor", problem));
        }
        // The reference computes the powers in f32.
        let inv = |i: usize| 1.0 / (theta as f32).powf(2.0 * i as f32 / rotary as f32);
        let mut inv_freq: Vec<f32> = (0..rotary / 2).map(inv).collect();
        if let Some(rule) = parameters.or(scaling) {
            rescale(&rule, &mut inv_freq)?;
        }
        Ok(Self { rotary, inv_freq })
    }
}

/// Applies the scaling rule that a rope section names.
fn rescale(rule: &Config<'_>, inv_freq: &mut [f32]) -> Result<(), ModelError> {
    let key = if rule.get("rope_type").is_some() { "rope_type" } else { "type" };
    match rule.text(key)?.unwrap_or("default") {
        // Three equal position rows for text make mrope ordinary rope.
        "default" | "mrope" => Ok(()),
        "linear" => {
            let factor = rule.positive("factor", None)? as f32;
            inv_freq.iter_mut().for_each(|inv| *inv /= factor);
            Ok(())
        }
        "llama3" => {
            let factor = rule.positive("factor", None)? as f32;
            let low = rule.positive("low_freq_factor", None)? as f32;
            let high = rule.positive("high_freq_factor", None)? as f32;
            let context = rule.positive("original_max_position_embeddings", None)? as f32;
            if high <= low {
                return Err(rule.bad("high_freq_factor", "must be more than low_freq_factor"));
            }
            for inv in inv_freq {
                let wavelength = 2.0 * std::f32::consts::PI / *inv;
                if wavelength > context / low {
                    *inv /= factor;
                } else if wavelength >= context / high {
                    let smooth = (context / wavelength - low) / (high - low);
                    *inv = (1.0 - smooth) * *inv / factor + smooth * *inv;
                }
            }
            Ok(())
        }
        _ => Err(rule.unsupported(key)),
    }
}

//! Numbers of the server itself, and the text with those of every model.

use crate::models::Models;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt;

/// What is counted of requests, whatever model they are for.
pub(crate) struct HttpMetrics {
    registry: Registry,
    requests: Family<Request, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    method: String,
    path: String,
    status: u16,
}

impl HttpMetrics {
    pub(crate) fn new() -> Self {
        let (mut registry, requests) = (Registry::default(), Family::default());
        let help = "Requests by path and status";
        registry.register("forerun:http_requests", help, requests.clone());
        Self { registry, requests }
    }

    /// Takes an answered request. `path` is the route, never what a client made up.
    pub(crate) fn note(&self, method: &str, path: &str, status: u16) {
        let (method, path) = (method.to_owned(), path.to_owned());
        self.requests.get_or_create(&Request { method, path, status }).inc();
    }

    /// All of it and of the models as text.
    pub(crate) fn text(&self, models: &Models) -> Result<String, fmt::Error> {
        let mut own = String::new();
        text::encode(&mut own, &self.registry)?;
        let mut parts = vec![own];
        for entry in models.entries() {
            parts.push(entry.metrics.text()?);
        }
        Ok(merged(&parts))
    }
}

/// Several texts as one: a metric has one heading, with the numbers of all texts under it.
fn merged(texts: &[String]) -> String {
    let mut metrics: Vec<(&str, String, String)> = Vec::new();
    for text in texts {
        let mut at = None;
        for line in text.lines().filter(|line| *line != "# EOF") {
            let heading = line.strip_prefix("# ").and_then(|line| line.split(' ').nth(1));
            if let Some(name) = heading {
                let known = metrics.iter().position(|(known, ..)| *known == name);
                at = Some(known.unwrap_or_else(|| {
                    metrics.push((name, String::new(), String::new()));
                    metrics.len() - 1
                }));
            }
            let Some((_, headings, numbers)) = at.map(|at| &mut metrics[at]) else { continue };
            match heading {
                Some(_) if headings.lines().any(|known| known == line) => {}
                Some(_) => headings.extend([line, "\n"]),
                None => numbers.extend([line, "\n"]),
            }
        }
    }
    let whole = metrics.into_iter().map(|(_, headings, numbers)| headings + &numbers);
    whole.collect::<String>() + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn a_metric_of_several_models_has_one_heading() {
        let text = |model: &str, extra: &str| {
            format!("# HELP a What\n# TYPE a counter\na_total{{m=\"{model}\"}} 1\n{extra}# EOF\n")
        };
        let both = merged(&[text("x", "# TYPE b gauge\nb 2\n"), text("y", "")]);
        let expected = "# HELP a What\n# TYPE a counter\na_total{m=\"x\"} 1\na_total{m=\"y\"} 1\n\
                        # TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(both, expected);
    }
}

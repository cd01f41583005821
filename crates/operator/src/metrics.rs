//! Figures for Prometheus: whether we lead, and what each part has to do.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use lvms_cluster::Busy;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Which part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    queue: &'static str,
}

/// What is counted.
#[derive(Default)]
pub struct Metrics {
    queues: Mutex<Vec<Arc<dyn Busy>>>,
}

impl Metrics {
    /// Counts these from now on; none if we do not lead.
    pub fn count(&self, queues: Vec<Arc<dyn Busy>>) {
        *self.queues.lock().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// All figures as they are now, in Prometheus' words.
    pub fn text(&self) -> String {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut registry = Registry::default();
        let leads = Gauge::<i64>::default();
        leads.set(i64::from(!queues.is_empty()));
        registry.register("lvms_operator_leads", "Whether this process leads", leads);
        let waiting = Family::<Queue, Gauge>::default();
        registry.register(
            "lvms_operator_queue_waiting",
            "How many objects wait to be looked at",
            waiting.clone(),
        );
        for (name, help) in [
            ("lvms_operator_queue_looks", "How many looks at objects there were"),
            ("lvms_operator_queue_failures", "How many looks at objects failed"),
        ] {
            let counts = Family::<Queue, Counter<u64, AtomicU64>>::default();
            registry.register(name, help, counts.clone());
            for queue in &queues {
                let figures = queue.figures();
                let count = if name.ends_with("looks") { figures.looks } else { figures.failed };
                counts.get_or_create(&Queue { queue: figures.name }).inc_by(count);
            }
        }
        for queue in &queues {
            let figures = queue.figures();
            let number = i64::try_from(figures.waiting).unwrap_or(i64::MAX);
            waiting.get_or_create(&Queue { queue: figures.name }).set(number);
        }
        let mut text = String::new();
        // Writing to a String does not fail. Whoever has more to tell tells it behind this.
        let _ = encode(&mut text, &registry);
        text.trim_end_matches("# EOF\n").to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_cluster::Work;
    use lvms_cluster::work::Patience;
    use std::time::Duration;

    #[test]
    fn what_waits_is_counted_by_its_queue() {
        let metrics = Metrics::default();
        assert!(metrics.text().contains("lvms_operator_leads 0"));
        let work = Work::new("provision", Patience { first: Duration::ZERO, longest: Duration::ZERO });
        work.add("a");
        metrics.count(vec![work]);
        let text = metrics.text();
        assert!(text.contains("lvms_operator_leads 1"), "{text}");
        assert!(text.contains("lvms_operator_queue_waiting{queue=\"provision\"} 1"), "{text}");
        assert!(text.contains("lvms_operator_queue_looks_total{queue=\"provision\"} 0"), "{text}");
    }
}

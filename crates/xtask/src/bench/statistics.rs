//! Medians and their confidence.

/// A median with the interval that has the true one with a confidence of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Median {
    pub(super) n: usize,
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Median {
    /// Of at least one number. The interval is that of order statistics, which assumes no distribution; fewer than six
    /// numbers cannot give such confidence, and the interval is then all of them.
    pub(super) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let out = outside(n);
        Self {
            n,
            median,
            low: sorted[out],
            high: sorted[n - 1 - out],
        }
    }

    /// Of the ratios of numbers that were measured in pairs.
    pub(super) fn of_ratios(of: &[f64], to: &[f64]) -> Self {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
        Self::of(&ratios)
    }
}

/// How many of `n` sorted numbers lie below the interval: the most for which the chance that the true median lies
/// outside, at either end, is at most 5 %. It lies below the number at `k` when at most `k` of `n` fell below it.
fn outside(n: usize) -> usize {
    let mut term = 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut below = 0.0;
    for k in 0..n / 2 {
        below += term;
        if 2.0 * below > 0.05 {
            return k.saturating_sub(1);
        }
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    (n / 2).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_fifteen() {
        // Table value: the 4th and the 12th of 15.
        let numbers: Vec<f64> = (1..=15).map(f64::from).rev().collect();
        assert_eq!(
            Median::of(&numbers),
            Median {
                n: 15,
                median: 8.0,
                low: 4.0,
                high: 12.0
            }
        );
    }

    #[test]
    fn the_interval_of_six_and_of_few() {
        let numbers: Vec<f64> = (1..=6).map(f64::from).collect();
        assert_eq!(
            Median::of(&numbers),
            Median {
                n: 6,
                median: 3.5,
                low: 1.0,
                high: 6.0
            }
        );
        assert_eq!(
            Median::of(&[2.0]),
            Median {
                n: 1,
                median: 2.0,
                low: 2.0,
                high: 2.0
            }
        );
    }

    #[test]
    fn ratios_are_of_pairs() {
        assert_eq!(
            Median::of_ratios(&[1.0, 20.0, 3.0], &[1.0, 10.0, 2.0]).median,
            1.5
        );
    }
}

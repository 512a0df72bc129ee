//! The picture of a run: training loss, evaluation loss and evaluation metrics over steps, as SVG. Pure:
//! points in, text out.

use std::fmt::Write as _;

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it shows, for the legend.
    pub name: String,
    /// (step, value); values that are not finite are left out, steps ascend.
    pub points: Vec<(f64, f64)>,
    /// Mark each point: for curves of few points.
    pub marked: bool,
}

/// One pair of axes with its curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Label of the vertical axis.
    pub label: String,
    /// The curves, drawn in this order.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 860.0;
const PANEL_HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 44.0;
const BETWEEN: f64 = 34.0;
const BOTTOM: f64 = 52.0;
/// Most points of one curve; more are averaged in groups, since a screen shows no more.
const MOST_POINTS: usize = 600;
/// Told apart without colour vision too (blue, vermilion, bluish green, purple).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#8a5aa8"];

/// Draws the panels below one another with a common horizontal axis of steps. Panels without a point are
/// left out; without any the picture says so.
#[must_use]
pub fn render(title: &str, panels: &[Panel]) -> String {
    let panels: Vec<Panel> = panels
        .iter()
        .map(finite)
        .filter(|p| !p.series.is_empty())
        .collect();
    let count = panels.len().max(1) as f64;
    let height = TOP + count * PANEL_HEIGHT + (count - 1.0) * BETWEEN + BOTTOM;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="13">"#
    );
    let _ = writeln!(svg, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##);
    let _ = writeln!(
        svg,
        r#"<text x="{LEFT}" y="26" font-size="16" font-weight="600">{}</text>"#,
        escape(title)
    );
    let steps = range(
        panels
            .iter()
            .flat_map(|p| &p.series)
            .flat_map(|s| s.points.iter().map(|p| p.0)),
    );
    match steps {
        None => {
            let _ = writeln!(
                svg,
                r#"<text x="{LEFT}" y="{}">no step was recorded</text>"#,
                TOP + 30.0
            );
        }
        Some(steps) => {
            let x = Axis::new(steps, LEFT, WIDTH - RIGHT, 8);
            for (i, panel) in panels.iter().enumerate() {
                let top = TOP + i as f64 * (PANEL_HEIGHT + BETWEEN);
                draw_panel(&mut svg, panel, &x, top);
            }
            let _ = writeln!(
                svg,
                r#"<text x="{}" y="{}" text-anchor="middle">step</text>"#,
                (LEFT + WIDTH - RIGHT) / 2.0,
                height - 12.0
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel, x: &Axis, top: f64) {
    let bottom = top + PANEL_HEIGHT;
    let Some(values) = range(panel.series.iter().flat_map(|s| s.points.iter().map(|p| p.1))) else {
        return;
    };
    let y = Axis::new(values, bottom, top, 6);
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = writeln!(
            svg,
            r##"<line x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}" stroke="#e2e2e2"/><text x="{}" y="{:.1}" text-anchor="end" fill="#444">{}</text>"##,
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.5,
            y.label(tick)
        );
    }
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = writeln!(
            svg,
            r##"<line x1="{at:.1}" x2="{at:.1}" y1="{bottom:.1}" y2="{:.1}" stroke="#444"/><text x="{at:.1}" y="{:.1}" text-anchor="middle" fill="#444">{}</text>"##,
            bottom + 5.0,
            bottom + 19.0,
            x.label(tick)
        );
    }
    let _ = writeln!(
        svg,
        r##"<path d="M{LEFT} {top:.1}V{bottom:.1}H{}" fill="none" stroke="#444"/><text transform="translate(18 {:.1}) rotate(-90)" text-anchor="middle">{}</text>"##,
        WIDTH - RIGHT,
        (top + bottom) / 2.0,
        escape(&panel.label)
    );
    for (i, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<(f64, f64)> = thinned(&series.points)
            .iter()
            .map(|(step, value)| (x.at(*step), y.at(*value)))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{}"/>"#,
            path.join(" ")
        );
        if series.marked {
            for (x, y) in &points {
                let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
            }
        }
        let legend = top + 18.0 + 18.0 * i as f64;
        let _ = writeln!(
            svg,
            r#"<line x1="{}" x2="{}" y1="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="3"/><text x="{}" y="{legend:.1}">{}</text>"#,
            WIDTH - RIGHT - 190.0,
            WIDTH - RIGHT - 170.0,
            legend - 4.5,
            legend - 4.5,
            WIDTH - RIGHT - 162.0,
            escape(&series.name)
        );
    }
}

fn finite(panel: &Panel) -> Panel {
    Panel {
        label: panel.label.clone(),
        series: panel
            .series
            .iter()
            .map(|s| Series {
                points: s
                    .points
                    .iter()
                    .copied()
                    .filter(|(a, b)| a.is_finite() && b.is_finite())
                    .collect(),
                ..s.clone()
            })
            .filter(|s| !s.points.is_empty())
            .collect(),
    }
}

/// At most [`MOST_POINTS`] points: means of neighbouring ones.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let group = points.len().div_ceil(MOST_POINTS).max(1);
    points
        .chunks(group)
        .map(|c| {
            let n = c.len() as f64;
            (
                c.iter().map(|p| p.0).sum::<f64>() / n,
                c.iter().map(|p| p.1).sum::<f64>() / n,
            )
        })
        .collect()
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, v| match range {
        None => Some((v, v)),
        Some((low, high)) => Some((low.min(v), high.max(v))),
    })
}

/// A linear axis whose ends are round numbers.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis over `range` drawn between the coordinates `from` and `to`, with about `ticks` ticks.
    fn new(range: (f64, f64), from: f64, to: f64, ticks: u32) -> Axis {
        let (mut low, mut high) = range;
        if high - low <= f64::EPSILON * high.abs().max(low.abs()) {
            // One value only: give it room on both sides.
            let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (low - room, high + room);
        }
        let step = round_step((high - low) / f64::from(ticks.max(1)));
        Axis {
            low: (low / step).floor() * step,
            high: (high / step).ceil() * step,
            step,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round() as u32;
        (0..=count).map(|i| self.low + f64::from(i) * self.step).collect()
    }

    fn label(&self, tick: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 12.0) as usize;
        let text = format!("{tick:.decimals$}");
        if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') {
            text.trim_start_matches('-').to_owned()
        } else {
            text
        }
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    for factor in [1.0, 2.0, 5.0] {
        if factor * power >= least * (1.0 - 1e-9) {
            return factor * power;
        }
    }
    10.0 * power
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: Vec<(f64, f64)>) -> Series {
        Series {
            name: "train <loss>".into(),
            points,
            marked: true,
        }
    }

    #[test]
    fn axes_end_at_round_numbers_that_contain_all_values() {
        for (low, high) in [
            (0.0, 1.0),
            (0.013, 2.31),
            (-5.0, 7.0),
            (3.0, 3.0),
            (1e-7, 9e-7),
            (1.0, 23450.0),
        ] {
            let axis = Axis::new((low, high), 0.0, 100.0, 6);
            assert!(axis.low <= low && axis.high >= high, "{low}..{high}");
            let ticks = axis.ticks();
            assert!((3..=9).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            assert!(axis.at(low) >= 0.0 && axis.at(high) <= 100.0 + 1e-9);
            let mut labels: Vec<String> = ticks.iter().map(|t| axis.label(*t)).collect();
            labels.dedup();
            assert_eq!(labels.len(), ticks.len(), "labels differ: {labels:?}");
        }
    }

    #[test]
    fn long_curves_are_thinned_and_values_that_are_not_finite_left_out() {
        let points = (0..100_000)
            .map(|i| (f64::from(i), if i == 7 { f64::NAN } else { 1.0 }))
            .collect();
        let svg = render(
            "job",
            &[Panel {
                label: "loss".into(),
                series: vec![series(points)],
            }],
        );
        assert!(!svg.contains("NaN"));
        assert!(svg.matches("<circle").count() <= MOST_POINTS);
        assert!(svg.contains("train &lt;loss&gt;"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_run_without_steps_has_a_picture_that_says_so() {
        let svg = render(
            "job",
            &[Panel {
                label: "loss".into(),
                series: vec![series(vec![])],
            }],
        );
        assert!(svg.contains("no step was recorded"));
    }
}

//! A second of a run as one line, for people and for `awk`.

use load::report::{Second, shown};

use super::Title;

/// A line like `at_s=3 send_pps=1000 recv_pps=1000 loss=0.00% p50_us=41.2 p99_us=97.1`. During the warm-up, `warm_up`
/// follows.
pub(super) fn line(second: &Second, title: &Title) -> String {
    let mark = if second.warm_up { " warm_up" } else { "" };
    let loss = match loss(second, title) {
        Some(loss) => format!("{:.2}%", loss * 100.0),
        None => "-".to_owned(),
    };
    format!(
        "at_s={:.0} send_pps={:.0} recv_pps={:.0} loss={loss} p50_us={} p99_us={}{mark}",
        second.at_s,
        second.send_pps,
        second.recv_pps,
        shown(second.p50_us),
        shown(second.p99_us),
    )
}

/// Share of what left within the second that did not arrive within it, 0 to 1; `None` if nothing had to. Datagrams in
/// transit at the edges of the second count for it or against it. Only the report at the end has each datagram.
pub(super) fn loss(second: &Second, title: &Title) -> Option<f64> {
    if title.one_sided {
        return None;
    }
    let missing = second.missing.max(0) as f64;
    let sent = second.recv_pps + missing;
    if second.send_pps <= 0.0 || sent <= 0.0 {
        return Some(0.0);
    }
    Some((missing / sent).min(1.0))
}

#[cfg(test)]
pub(super) fn sample(recv_pps: f64, missing: i64, warm_up: bool) -> Second {
    // `Second` is made by the library only; JSON is the way in from outside.
    let text = format!(
        r#"{{"at_s":3.0,"send_pps":1000.0,"recv_pps":{recv_pps:?},"missing":{missing},"p50_us":41.25,"p99_us":97.0,"warm_up":{warm_up}}}"#
    );
    serde_json::from_str(&text).expect("a second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_for_every_figure() {
        let mut title = Title::default();
        let second = sample(900.0, 100, false);
        assert_eq!(
            line(&second, &title),
            "at_s=3 send_pps=1000 recv_pps=900 loss=10.00% p50_us=41.2 p99_us=97.0"
        );
        assert!(line(&sample(1000.0, 0, true), &title).ends_with(" warm_up"));
        title.one_sided = true;
        assert!(line(&second, &title).contains("loss=- "));
    }

    #[test]
    fn late_datagrams_of_the_previous_second_are_no_gain() {
        let loss = |second: &Second| loss(second, &Title::default());
        assert_eq!(loss(&sample(1010.0, -10, false)), Some(0.0));
        assert_eq!(loss(&sample(0.0, 1000, false)), Some(1.0));
    }
}

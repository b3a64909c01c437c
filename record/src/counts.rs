//! Sums and differences of records of counts. Both saturate: a peer may report any number.

/// Adds the named counts of `$o` to those of `$sum`.
macro_rules! add_counts {
    ($sum:ident += $o:ident: $($count:ident)+) => {
        $($sum.$count = $sum.$count.saturating_add($o.$count);)+
    };
}

/// `$now` with the named counts less those of `$before`.
macro_rules! counts_since {
    ($now:expr, $before:ident: $($count:ident)+) => {{
        let mut since = $now.clone();
        $(since.$count = since.$count.saturating_sub($before.$count);)+
        since
    }};
}

pub(crate) use {add_counts, counts_since};

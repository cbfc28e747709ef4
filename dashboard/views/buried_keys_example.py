"""The part of the buried-keys page that shows one query of a layer: text, the heads' picks, and their coalitions."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.charts.coalition import LESS, MORE, PickMark, coalition
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, markdown_text
from dashboard.marked_text import Mark, legend, marked_text, visible
from dashboard.queries import buried_keys as queries
from dashboard.queries.buried_keys import KeyRow, Pick, Token
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.buried_keys_model import KIND
from dashboard.views.buried_keys_ranking import Example

QUERY_COLOUR = "#9a5bc4"
PICK_COLOUR = "#8a919e"
NEAR_KEY, NEAR_PICK = 30, 8  # tokens of text shown on both sides
PICKS_TEXT = 200  # tokens of text around all of the heads' picks together, so that the query stays in view


def example(job: FinishedJob, chosen: Example | None) -> None:
    """The query at (layer, sequence, query) of the job."""
    st.subheader("One query")
    if chosen is None:
        st.caption("Choose a row of a list above.")
        return
    layer, sequence, query = chosen
    with reading() as conn:
        found, keys, picks = queries.one_query(conn, job.job_id, layer, sequence, query)
        tokens = queries.sequence_tokens(conn, job.job_id, sequence, query) if found else []
    if found is None:
        st.warning(
            f"Job {job.job_id} did not measure layer {layer}, sequence {sequence}, query {query}.",
            icon=":material/search_off:",
        )
        return
    names = {token.position: visible(token.text, token.token_id) for token in tokens}
    st.markdown(
        f"Layer **{layer}**, sequence **{sequence}**, query **{query}** “{markdown_text(names.get(query, ''))}”. "
        + _verdict(job, found, keys, names)
    )
    _text(tokens, query, keys, picks)
    values = {"job": job.job_id, "layer": layer, "sequence": sequence, "query": query}
    if keys:
        _coalitions(keys, picks, names)
        frame = pd.DataFrame([asdict(row) for row in keys]).drop(
            columns=["query_context", "query_token", "key_context", "key_token"]
        )
        sql_and_data(KIND, "coalitions", as_text(queries.KEYS_OF_QUERY, **values), frame)
    if not picks:
        st.caption(
            "The heads' own picks of this query are not stored: the job was submitted with "
            f"`picks={job.parameters.get('picks', 'none')}`."
            if job.parameters.get("picks") != "all"
            else "No head has a key with an advantage other than 0 here, so none picks anything."
        )
        return
    marks = [PickMark(**asdict(pick)) for pick in picks]
    figure = coalition(marks, names, {row.key: row.direction for row in keys})
    st.markdown("**What each head picks**")
    st.plotly_chart(
        figure,
        key="coalition",
        config=CHART_CONFIG,
        alt="Picked keys by head; full marks agree with a coalition. The same picks are in the CSV below.",
    )
    st.caption(
        "Full marks agree on a key with at least min_heads heads and one sign; the columns of such keys are shaded. "
        "Size: absolute advantage over its root mean square in the head's row. Crosses: each head's own top key."
    )
    _heads(picks, names)
    sql_and_data(
        KIND, "picks", as_text(queries.PICKS_OF_QUERY, **values), pd.DataFrame([asdict(pick) for pick in picks]), figure
    )


def _verdict(job: FinishedJob, found: queries.Query, keys: Sequence[KeyRow], names: Mapping[int, str]) -> str:
    needed = job.parameters.get("min_heads")
    if not found.qualifying:
        closest = f"at most {found.most_heads} agree on one key" if found.most_heads else "none has a key to pick"
        return f"**The heads abstain**: {closest}, and {needed} would have to."
    if not keys:
        return f"**{found.qualifying}** keys qualified; none is stored with this job's `keep` and `min_attention_rank`."
    best = keys[0]
    token = markdown_text(names.get(best.key, ""))
    return (
        f"The consensus selects **“{token}”** (key {best.key}): **{best.heads}** heads agree on "
        f"**{'more' if best.direction > 0 else 'less'}** attention, score {best.score:.1f}, attention rank "
        f"{best.attention_rank_smallest:,} to {best.attention_rank_largest:,} in these heads. "
        f"Qualifying keys: {found.qualifying}."
    )


def _text(tokens: Sequence[Token], query: int, keys: Sequence[KeyRow], picks: Sequence[Pick]) -> None:
    heads: dict[int, list[int]] = defaultdict(list)
    for pick in picks:
        if pick.place == 1:
            heads[pick.key].append(pick.head)
    marks = {
        key: Mark(PICK_COLOUR, f"key {key}: top key of head {', '.join(map(str, of))}", filled=False)
        for key, of in heads.items()
    }
    for row in reversed(keys):  # the best last, where both signs of a key qualify
        marks[row.key] = Mark(
            MORE if row.direction > 0 else LESS,
            f"key {row.key}: {row.heads} heads for {'more' if row.direction > 0 else 'less'}, score {row.score:.1f}",
        )
    marks[query] = Mark(QUERY_COLOUR, f"query {query}" + (f"; {marks[query].told}" if query in marks else ""))
    whole = st.toggle("Whole text up to the query", key="whole", bind="query-params")
    near = text_shown(query, [row.key for row in keys], heads)
    st.html(
        legend(
            [
                Mark(QUERY_COLOUR, "query"),
                Mark(MORE, "coalition for more attention"),
                Mark(LESS, "coalition for less"),
                Mark(PICK_COLOUR, "a head's own top key", filled=False),
            ]
        )
        + marked_text([(token.position, _as_text(token)) for token in tokens], marks, None if whole else near)
    )


def text_shown(query: int, keys: Sequence[int], picks: Collection[int]) -> dict[int, int]:
    """Tokens of text on both sides of each place: most around the query and the best of the qualifying keys."""
    others = {*picks, *keys[1:]}
    reach = max(1, min(NEAR_PICK, PICKS_TEXT // (2 * len(others)))) if others else 0
    return dict.fromkeys(others, reach) | dict.fromkeys([query, *keys[:1]], NEAR_KEY)


def _as_text(token: Token) -> str:
    return f" #{token.token_id}" if token.text is None else token.text


def _coalitions(keys: Sequence[KeyRow], picks: Sequence[Pick], names: Mapping[int, str]) -> None:
    agreeing: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pick in picks:
        agreeing[pick.key, 1 if pick.advantage > 0 else -1].append(pick.head)
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "Place": row.place,
                    "Key": names.get(row.key, ""),
                    "Position": row.key,
                    "For": "more" if row.direction > 0 else "less",
                    "Score": row.score,
                    "Heads": row.heads,
                    "Agreeing heads": ", ".join(map(str, agreeing[row.key, row.direction])) or NOTHING,
                    "Smallest rank": row.attention_rank_smallest,
                    "Median rank": row.attention_rank_median,
                    "Largest rank": row.attention_rank_largest,
                    "Largest weight": row.largest_weight,
                }
                for row in keys
            ]
        ),
        hide_index=True,
        key="coalitions",
        height=rows_height(len(keys)),
        column_config={
            "Place": st.column_config.NumberColumn(width=60),
            "Score": st.column_config.NumberColumn(format="%.1f"),
            "Median rank": st.column_config.NumberColumn(format="%.10g"),
            "Largest weight": st.column_config.NumberColumn(format="%.2g"),
        },
    )


def _heads(picks: Sequence[Pick], names: Mapping[int, str]) -> None:
    """Each head's own top key beside those it agrees on with others."""
    lines = []
    for head in sorted({pick.head for pick in picks}):
        mine = [pick for pick in picks if pick.head == head]
        top = mine[0]
        joined = [f"{names.get(pick.key, '')} ({pick.key})" for pick in mine if pick.agrees]
        lines.append(
            {
                "Head": head,
                "Own top key": names.get(top.key, ""),
                "Position": top.key,
                "For": "more" if top.advantage > 0 else "less",
                "Advantage": top.advantage,
                "Attention rank": top.attention_rank,
                "Weight": top.weight,
                "Agrees with others on": ", ".join(joined) or NOTHING,
            }
        )
    st.dataframe(
        pd.DataFrame(lines),
        hide_index=True,
        key="head_picks",
        height=rows_height(len(lines), at_most=16),
        column_config={
            "Head": st.column_config.NumberColumn(width=60),
            "Advantage": st.column_config.NumberColumn(
                format="%+.2f", help="over its root mean square in the head's row"
            ),
            "Weight": st.column_config.NumberColumn(format="%.2g"),
            "Agrees with others on": st.column_config.TextColumn(width="large"),
        },
    )

"""A pipeline whose steps are SQL: the statements of revenue.sql, over the tables of two CSV files.

understudy job run revenue.py --data .
understudy job explain revenue.py --data .

The file is read when the job is submitted, so a later edit does not change a job that waits or restarts.
"""

import re
from pathlib import Path

from understudy import Context, Parameter, Pipeline, parse_parameters

STATEMENTS = re.compile(r"^-- vertex: (\w+)\n(.*?);$", re.MULTILINE | re.DOTALL)
TABLES = {
    "orders": "id INT, customer INT, day STRING, state STRING, cents INT",
    "customers": "id INT, name STRING, country STRING",
}


def read_table(ctx: Context):
    path = f"{ctx.parameters['data']}/{ctx.vertex_name}.csv"
    return ctx.spark.read.csv(path, header=True, schema=TABLES[ctx.vertex_name])


def run_statement(ctx: Context, *inputs):
    statement = ctx.parameters["sql"][ctx.vertex_name]
    return ctx.spark.sql(statement, **dict(zip(names_in(statement), inputs, strict=True)))


def show(ctx: Context, report):
    for row in report.collect():
        print(*row)


def names_in(statement):
    """Return the tables that a statement reads, each once."""
    return list(dict.fromkeys(re.findall(r"{(\w+)}", statement)))


def pipeline(argv):
    parameters = parse_parameters(argv, Parameter("data", help="directory of orders.csv and customers.csv"))
    parameters["data"] = str(Path(parameters["data"]).resolve())
    statements = dict(STATEMENTS.findall(Path(__file__).with_name("revenue.sql").read_text()))

    p = Pipeline("revenue", {**parameters, "sql": statements})
    results = {name: p.source(name, read_table) for name in TABLES}
    for name, statement in statements.items():
        results[name] = p.operator(name, run_statement, *(results[read] for read in names_in(statement)))
    p.sink("show", show, results["report"])
    return p

from deploy.output import print_rows, table


def test_numbers_stand_to_the_right_and_what_is_missing_is_a_dash():
    rows = [{"name": "needle", "reward": 0.123456, "count": 7}, {"name": "x" * 90, "reward": None, "count": 12}]
    assert table(rows, ["name", "reward", "count"], most_width=10) == [
        "name        reward  count",
        "──────────  ──────  ─────",
        "needle      0.1235      7",
        "xxxxxxxxx…       –     12",
    ]


def test_rows_as_json_lines_and_as_csv(capsys):
    rows = [{"a": 1, "b": b"\x01\x02", "hidden": 3}]
    print_rows(rows, ["a", "b"], as_json=True)
    assert capsys.readouterr().out == '{"a": 1, "b": "0102"}\n'
    print_rows([{"a": 1, "b": "x,y"}], ["a", "b"], as_csv=True)
    assert capsys.readouterr().out.splitlines() == ["a,b", '1,"x,y"']

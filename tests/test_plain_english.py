"""The prose of milblob is plain English: no listed word in code, documentation and names of tests."""

import plain_english


def test_no_listed_word_is_used():
    found = [f"{name}:{number}: {word}" for name, number, word, _ in plain_english.listed()]
    assert not found, "\n".join(found[:40])


def test_a_listed_word_is_found_in_each_kind_of_prose():
    assert [
        number
        for number, line in plain_english.prose_of_python('x = 1  # stays\n"""Told\n\nsays."""\n')
        if plain_english.LISTED.search(line)
    ] == [1, 2, 4]
    assert [
        number
        for number, line in plain_english.prose_of_c("int a; /* stays\n told */\nint stays;")
        if plain_english.LISTED.search(line)
    ] == [1, 2]
    assert [
        number
        for number, line in plain_english.prose_of_page("told\n```\ntold\n```\n`told`\n")
        if plain_english.LISTED.search(line)
    ] == [1]
    assert [words for _, words in plain_english.names_of_tests("def test_it_stays():\n    pass\n")] == ["test it stays"]

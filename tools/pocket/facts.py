"""Builds facts.json.gz, what the chats of corpus.py are about.

usage: facts.py FACTBOOK_DIR WORDNET_DIR facts.json.gz

FACTBOOK_DIR holds the World Factbook as JSON, one file per country in one folder per region (public domain).  WORDNET_DIR holds
WordNet 3.0's data.noun, data.verb, data.adj and data.adv (licence: models/pocket/WORDNET-LICENSE.txt).
"""
import glob
import gzip
import json
import re
import sys


def txt(d):
    if not isinstance(d, dict):
        return None
    t = d.get("text")
    return re.sub(r"\s+", " ", t.replace("++", ";")).strip(" ;") if isinstance(t, str) else None


def get(d, *path):
    for p in path:
        if not isinstance(d, dict) or p not in d:
            return None
        d = d[p]
    return d


countries = []
for f in sorted(glob.glob(sys.argv[1] + "/*/*.json")):
    if "/meta/" in f or "/world/" in f or "/oceans/" in f:
        continue
    d = json.load(open(f))
    name = txt(get(d, "Government", "Country name", "conventional short form"))
    if not name or name.lower().startswith("none"):
        name = txt(get(d, "Government", "Country name", "conventional long form"))
    if not name or len(name) > 40:
        continue
    name = re.sub(r"\s*\(.*?\)", "", name)
    c = {"name": name}

    def put(key, *path, first=None):
        t = txt(get(d, *path))
        if t and len(t) < 700 and t != "NA":
            c[key] = t if first is None else re.split(first, t)[0].strip()

    put("background", "Introduction", "Background")
    bg = txt(get(d, "Introduction", "Background"))
    if bg:
        c["background"] = " ".join(re.split(r"(?<=[.;]) ", bg)[:3])
    put("capital", "Government", "Capital", "name", first=r"[;(]")
    put("location", "Geography", "Location")
    put("area", "Geography", "Area", "total", first=r"[;(]")
    put("climate", "Geography", "Climate")
    put("terrain", "Geography", "Terrain")
    put("coastline", "Geography", "Coastline", first=r"[;(]")
    put("highest point", "Geography", "Elevation extremes", "highest point")
    put("lowest point", "Geography", "Elevation extremes", "lowest point")
    put("neighbours", "Geography", "Land boundaries", "border countries")
    put("natural resources", "Geography", "Natural resources")
    put("natural hazards", "Geography", "Natural hazards")
    put("nationality", "People and Society", "Nationality", "adjective")
    put("languages", "People and Society", "Languages")
    put("religions", "People and Society", "Religions")
    put("population", "People and Society", "Population", first=r"[ (]")
    put("median age", "People and Society", "Median age", "total")
    put("life expectancy", "People and Society", "Life expectancy at birth", "total population")
    put("cities", "People and Society", "Major urban areas - population")
    put("government type", "Government", "Government type")
    put("national holiday", "Government", "National holiday")
    put("flag", "Government", "Flag description")
    put("symbols", "Government", "National symbol(s)")
    put("economy", "Economy", "Economy - overview")
    ec = txt(get(d, "Economy", "Economy - overview"))
    if ec:
        c["economy"] = " ".join(re.split(r"(?<=[.]) ", ec)[:3])
    put("crops", "Economy", "Agriculture - products")
    put("industries", "Economy", "Industries")
    put("exports", "Economy", "Exports - commodities")
    put("imports", "Economy", "Imports - commodities")
    put("export partners", "Economy", "Exports - partners")
    if len(c) > 8:
        countries.append(c)
words = {}
for pos, fn in (("noun", "data.noun"), ("verb", "data.verb"), ("adjective", "data.adj"), ("adverb", "data.adv")):
    for line in open(sys.argv[2] + "/" + fn, encoding="latin1"):
        if line.startswith("  "):
            continue
        head, _, gloss = line.partition(" | ")
        w = head.split()[4].replace("_", " ").split("(")[0]
        g = gloss.split(';')[0].strip()
        if w.isalpha() and w.islower() and 3 <= len(w) <= 10 and 8 < len(g) < 90 and '"' not in g and w not in words:
            words[w] = [pos, g]
json.dump({"countries": countries, "words": words}, gzip.open(sys.argv[3], "wt"))
print(len(countries), len(words), [c["name"] for c in countries][:20])

"""How the results are shown.

Reading order: results, figures, charts, page, markdown; costs, formats, model, model_page, advice;
table (the bars).
"""

/** A panel with all its texts in the language of the page. What its names select is computed from the original names. */

import type { Axis, Cells, Label, Line, Mark, Panel, Shape } from '../api'
import { templateOf, type Text } from '../messages/message'
import { markSelection, selectionOf, type Selection } from './selection'

export interface RenderedAxis extends Axis<string> { selections: Selection[] }
export type RenderedMark = Mark<string> & { selection: Selection }
export interface RenderedPanel extends Panel<string> { marks: RenderedMark[]; x: RenderedAxis; y: RenderedAxis }
export interface TextRenderer { render(text: Text): string; /** For names that may be tokens, which are not translated. */ renderLabel(text: Text): string }

export function renderPanel(panel: Panel, renderer: TextRenderer): RenderedPanel {
  return {
    ...panel, title: renderer.render(panel.title), about: renderer.render(panel.about), x: renderAxis(panel.x, renderer), y: renderAxis(panel.y, renderer),
    marks: panel.marks.map((mark) => ({ ...renderMark(mark, renderer), selection: markSelection(mark) })),
  }
}

function renderAxis(axis: Axis, { render, renderLabel }: TextRenderer): RenderedAxis {
  const ofHeads = templateOf(axis.label) === 'head'
  return { ...axis, label: render(axis.label), names: axis.names.map(renderLabel), selections: axis.names.map((name, index) => (ofHeads ? { head: index } : selectionOf(name))) }
}

function renderMark(mark: Mark, renderer: TextRenderer): Mark<string> {
  if (mark.mark === 'line') return renderLine(mark, renderer)
  if (mark.mark === 'shape') return renderShape(mark, renderer)
  return mark.mark === 'cells' ? renderCells(mark, renderer) : renderTextLabel(mark, renderer)
}

const renderLine = (line: Line, { render, renderLabel }: TextRenderer): Line<string> => ({ ...line, name: renderLabel(line.name), tip: render(line.tip), tips: line.tips.map(render) })

const renderShape = (shape: Shape, { render, renderLabel }: TextRenderer): Shape<string> => ({ ...shape, name: renderLabel(shape.name), tip: render(shape.tip) })

function renderCells({ name, ...cells }: Cells, { render, renderLabel }: TextRenderer): Cells<string> {
  const rendered = { ...cells, texts: cells.texts.map((row) => row.map(renderLabel)), tips: cells.tips.map((row) => row.map(render)) }
  return name === undefined ? rendered : { ...rendered, name: render(name) }
}

/** A single word is a token and is not translated. */
const renderTextLabel = (label: Label, { render }: TextRenderer): Label<string> =>
  ({ ...label, text: typeof label.text === 'string' && !label.text.includes(' ') ? label.text : render(label.text) })

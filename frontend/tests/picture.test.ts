import { describe, expect, it } from 'vitest'

import { Frame, hit, polylines, positionSelection, type Zoom } from '../src/picture/layout'
import { placedLabels } from '../src/picture/label_places'
import { markSelection, selectionOf } from '../src/picture/selection'
import { renderPanel, type RenderedMark } from '../src/picture/render_panel'
import { PLAIN } from './plain_renderer'
import { cellColour } from '../src/picture/cell_colours'
import { makeAxis, barPanel, makeCells, makeLine, makePanel } from '../src/picture/panel_builders'
import { logTicks, formatTicks, legendOf, formatNumber, shadeOf, valueRange, thinTicks, roundTicks } from '../src/picture/scale'
import type { Label, Line } from '../src/api'
import { render, type Text } from '../src/messages/message'

describe('numbers and ticks', () => {
  it('three significant digits', () => expect([0, 0.1234, 12.34, 1234567, NaN, 1234].map(formatNumber)).toEqual(['0', '0.123', '12.3', '1.23e+6', 'none', '1234']))
  it('round ticks', () => {
    expect(roundTicks(0, 1)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
    expect(roundTicks(3, 47)).toEqual([10, 20, 30, 40])
  })
  it('logarithmic ticks', () => {
    expect(logTicks(1, 2500)).toEqual([1, 10, 100, 1000])
    expect(logTicks(30, 250)).toEqual([50, 100, 200])
    expect(logTicks(0.52, 0.94)).toEqual([0.6, 0.7, 0.8, 0.9])
  })
  it('enough digits to differ', () => {
    expect(formatTicks([0, 0.5, 1])).toEqual(['0', '0.5', '1'])
    expect(formatTicks([2.395, 2.4, 2.405])).toEqual(['2.395', '2.400', '2.405'])
  })
  it('thinned ticks', () => {
    expect(thinTicks(makeAxis({ names: [...'abcdefghij'] }), 4)).toEqual([0, 3, 6, 9])
    expect(thinTicks(makeAxis({ names: [...'abcdefg'], marked: [0, 2, 4, 6] }), 2)).toEqual([0, 4])
  })
})

describe('a panel', () => {
  const curve = makePanel('Speed', [makeLine('speed', [1, 2, 4]), makeLine('null', [1, 1, 1], 'null', 'dashed')], { x: makeAxis({ names: ['embed', 'L0', 'L1'] }) })
  it('has a range that contains all values', () => {
    expect(valueRange(curve, 'x')).toEqual([0, 2])
    const [low, high] = valueRange(curve, 'y')
    expect(low).toBeLessThan(1)
    expect(high).toBeGreaterThan(4)
  })
  it('converts a value to pixels and back', () => {
    const frame = new Frame(renderPanel(curve, PLAIN), 400, 236)
    const back = frame.invert(frame.x(1), frame.y(2))
    expect(back.x).toBeCloseTo(1)
    expect(back.y).toBeCloseTo(2)
    expect(frame.y(4)).toBeLessThan(frame.y(1))
  })
  it('breaks a line at a missing value', () => {
    const broken = { ...makeLine('a', [1, 2, 3, 4]), y: [1, null, 3, 4] }
    const panel = renderPanel(makePanel('', [broken]), PLAIN)
    expect(polylines(new Frame(panel, 300, 200), panel.marks[0] as RenderedMark & Line<string>).length).toBe(2)
  })
  it('lists all values of a column, and what the column selects', () => {
    const frame = new Frame(renderPanel(curve, PLAIN), 400, 236)
    const target = hit(frame, frame.x(1) + 3, frame.y(3))!
    expect(target.text).toBe('L0\nspeed: 2\nnull: 1')
    expect(target.selection).toEqual({ layer: 0, step: 'L0.resid_post' })
  })
  it('counts the rows of a map from the top and selects head and layer', () => {
    const map = makePanel('', [makeCells([[0, 0.5], [-1, 1]], -1, 1)], { x: makeAxis({ label: 'head', names: ['0', '1'] }), y: makeAxis({ names: ['L0', 'L1'] }) })
    const frame = new Frame(renderPanel(map, PLAIN), 300, 200)
    expect(frame.y(0)).toBeLessThan(frame.y(1))
    const target = hit(frame, frame.x(1), frame.y(1))!
    expect(target.selection).toMatchObject({ layer: 1, head: 1 })
    expect(target.text).toContain('1')
    expect(positionSelection(renderPanel(map, PLAIN), 0, 1)).toMatchObject({ layer: 1, head: 0 })
  })
  it('shows the names of bars whole on a phone', () => {
    const names = ['heads, from the prompt', 'heads, from the answer', 'biases and norms']
    const bars = barPanel('', names.map((name, index) => ({ name, value: index })), 'logits')
    const shown = new Frame(renderPanel(bars, PLAIN), 326, 150).ticks('y').map(({ text }) => text)
    expect(shown.sort()).toEqual([...names].sort())
  })
  it('finds a line with a tip within reach only', () => {
    const path: Line = { ...makeLine('3 ·sea', [0, 1]), tip: 'sea' }
    const frame = new Frame(renderPanel(makePanel('', [path]), PLAIN), 300, 200)
    expect(hit(frame, frame.x(0.5), frame.y(0.5) + 4)?.selection).toEqual({ token: 3 })
    expect(hit(frame, frame.x(0.5) + 60, frame.y(0.5) + 40)).toBeNull()
  })
  it('leaves out a label that would cover an earlier one, on a narrow panel only', () => {
    const path: Line = { ...makeLine('path', [0, 1]), x: [0, 1], tip: 'path' }
    const label = (x: number, text: string): Label => ({ mark: 'label', x, y: 0.5, text, side: 'right', strong: false })
    const panel = renderPanel(makePanel('', [path, label(0.2, '·garden'), label(0.35, '·bank'), label(0.36, '·ship')]), PLAIN)
    const shown = (width: number, zoom: Zoom | null = null) => placedLabels(new Frame(panel, width, 400, zoom), panel.marks, zoom !== null).map(({ text }) => text)
    expect(shown(600)).toEqual(['·garden', '·bank'])
    expect(shown(200)).toEqual(['·garden'])
    expect(shown(200, { x: [0.34, 0.37], y: [0, 1] })).toEqual(['·bank', '·ship'])
  })
  it('finds bars', () => {
    const bars = barPanel('t', [{ name: 'a', value: 2 }, { name: 'b', value: -1 }], 'logits')
    const frame = new Frame(renderPanel(bars, PLAIN), 300, bars.height * 236)
    expect(hit(frame, frame.x(1), frame.y(1))?.text).toBe('a: 2.00')
    expect(hit(frame, frame.x(-0.5), frame.y(0))?.text).toBe('b: -1.00')
  })
  it('has a legend of lines without tips', () => expect(legendOf(renderPanel(curve, PLAIN)).map((item) => item.name)).toEqual(['speed', 'null']))
  it('shades cells from −1 to 1 around the centre', () => {
    const map = makeCells([], 0, 2, 1)
    expect([shadeOf(map, 2), shadeOf(map, 0), shadeOf(map, 1), shadeOf(map, 9), shadeOf(map, null)]).toEqual([1, -1, 0, 1, 0])
  })
  it('draws a missing value in grey and the centre in the colour of the paper', () => {
    const [map, paper] = [makeCells([], 0, 2, 1), [255, 255, 255] as [number, number, number]]
    expect(cellColour(map, 1, paper)).toEqual(paper)
    expect(cellColour(map, null, paper)).toEqual([226, 228, 233])
    expect(cellColour(map, NaN, paper)).toEqual([226, 228, 233])
  })
})

it('a mark selects the token of its tip, else what its name says', () => {
  const tip = { template: 'token {token_index} {token}: path length {length:.0f}', parameters: { token_index: 1, token: 'The', length: 163 } }
  expect(markSelection({ ...makeLine('The', [0, 1]), tip })).toEqual({ token: 1 })
  expect(markSelection({ ...makeLine('L3.H1', [0, 1]), tip: 'path length 163' })).toEqual({ layer: 3, head: 1 })
  expect(selectionOf({ template: '{step} of {model}', parameters: { step: 'L3.resid_mid', model: 'gpt2' } })).toEqual({ step: 'L3.resid_mid' })
})

it('a panel is rendered in another language, and its names still select the same', () => {
  const chinese: Record<string, string> = { head: '头', embed: '嵌入', '{n} tokens': '{n} 个词元' }
  const renderer = { render: (text: Text) => render(text, chinese), renderLabel: (text: Text) => render(text, chinese) }
  const panel = renderPanel(makePanel('head', [makeLine('embed', [1])], { about: { template: '{n} tokens', parameters: { n: 3 } }, x: makeAxis({ names: ['embed', 'L0'] }), y: makeAxis({ label: 'head', names: ['0'] }) }), renderer)
  expect([panel.title, panel.about, panel.x.names, panel.y.label]).toEqual(['头', '3 个词元', ['嵌入', 'L0'], '头'])
  expect([panel.x.selections, panel.y.selections, panel.marks[0]!.selection]).toEqual([[{ step: 'embed' }, { layer: 0, step: 'L0.resid_post' }], [{ head: 0 }], { step: 'embed' }])
})

it('names select tokens, heads, steps and layers', () => {
  expect(selectionOf('12 ·bank')).toEqual({ token: 12 })
  expect(selectionOf('L3.H1')).toEqual({ layer: 3, head: 1 })
  expect(selectionOf('L3 attn')).toEqual({ layer: 3, step: 'L3.resid_mid' })
  expect(selectionOf('L3 mlp')).toEqual({ layer: 3, step: 'L3.resid_post' })
  expect(selectionOf('embed')).toEqual({ step: 'embed' })
  expect(selectionOf('12')).toEqual({})
})
